import { describe, expect, it } from 'vitest';
import { Forest } from '../src/lib/forest';
import { actionOf, KEYMAP } from '../src/lib/keymap';
import { fromHash, recipeOf, toHash } from '../src/lib/link';
import { changed, defaultStrategy, grouped, read, SLIDERS, STRATEGIES, strategyOf, write } from '../src/lib/options';
import { TOUR } from '../src/lib/tour';
import type { Option, Options } from '../src/lib/types';
import { events, fork, info, run } from './recorded';

const option = (name: string): Option => info().options.find((each) => each.name === name)!;

describe('the settings', () => {
  it('have a place for every option that the server has, with its help', () => {
    const shown = grouped(info().options);
    expect(shown.flatMap((group) => group.options)).toEqual(info().options);
    expect(shown).toHaveLength(8);
    expect(info().options.every((each) => each.help.length > 0)).toBe(true);
  });
  it('are read as the server takes them', () => {
    expect(read(option('temperature'), ' 0.7 ')).toBe(0.7);
    expect(read(option('temperature'), '1')).toBeUndefined(); // its default
    expect(read(option('top_k'), '')).toBeUndefined();
    expect(read(option('stop'), 'a\\nb\n\nc')).toEqual(['a\nb', 'c']);
    expect(read(option('stop_token_ids'), '1, 2')).toEqual([1, 2]);
    expect(read(option('logit_bias'), '5=1.5, 7=-2')).toEqual({ 5: 1.5, 7: -2 });
    expect(read(option('json_schema'), '{"type":"object"}')).toEqual({ type: 'object' });
    expect(read({ ...option('json_schema'), name: 'stage_options', kind: 'stage_options' }, '{"mine":{"words":3}}')).toEqual({ mine: { words: 3 } });
    expect(read(option('ignore_eos'), true)).toBe(true);
    expect(() => read(option('top_k'), '1.5')).toThrow('whole number');
    expect(() => read(option('seed'), 'abc')).toThrow('seed is "abc"; a whole number is expected');
    expect(() => read(option('seed'), '-1')).toThrow('seed is -1; a whole number from 0 to 2^64 - 1 is expected');
    expect(read(option('seed'), '18446744073709551615')).toBe(18446744073709551615n);
    expect(() => read(option('temperature'), 'warm')).toThrow('temperature is "warm"; a number is expected');
    expect(() => read(option('max_tokens'), '1e400')).toThrow('whole number');
    expect(() => read(option('logit_bias'), 'x')).toThrow('ID=VALUE');
    expect(() => read(option('json_schema'), '{')).toThrow('JSON');
  });
  it('are written as they were read', () => {
    for (const [name, text] of [['temperature', '0.7'], ['stop', 'a\\nb\nc'], ['stop_token_ids', '1, 2'], ['regex', 'a+']] as const) expect(write(option(name), read(option(name), text))).toBe(text);
  });
  it('of strategies and sliders exist', () => {
    const known = info().options.map((each) => each.name);
    for (const name of [...SLIDERS.map((each) => each.name), ...STRATEGIES.flatMap((each) => Object.keys(each.sampling))]) expect(known).toContain(name);
    for (const step of TOUR) for (const name of Object.keys(step.start?.sampling ?? {})) expect(known).toContain(name);
    expect(TOUR).toHaveLength(15);
  });
  it('begin with the defaults of the server, and are named by their strategy whatever these are', () => {
    for (const [temperature, top_k, about] of [[1, 0, 'temperature 1:'], [0.5, 0, 'temperature 0.5:'], [1, 64, 'temperature 1, top-k 64:']] as const) {
      const options = info().options.map((each) => ({ ...each, default: { temperature, top_k }[each.name] ?? each.default }));
      const menu = [defaultStrategy(options), ...STRATEGIES];
      expect(menu[0]!.about.startsWith(about), menu[0]!.about).toBe(true);
      const named = (sampling: Options) => strategyOf({ max_tokens: 60, logprobs: 20, ...sampling }, menu, options)?.name;
      expect(named({})).toBe('default');
      expect(named({ temperature, top_k })).toBe('default');
      for (const each of STRATEGIES) expect(named(each.sampling)).toBe(each.name);
      expect([named({ temperature: 0.33 }), named({ temperature: 1.5, top_k: 7 })]).toEqual([undefined, undefined]);
    }
  });
  it('that differ from the defaults are all that is kept', () => {
    expect(changed(run().sampling, info().options)).toMatchObject({ temperature: 0.8, top_k: 40, seed: 7, max_tokens: 12 });
  });
});

describe('a link', () => {
  const forest = new Forest();
  for (const event of events()) forest.apply(event);
  // A server with other defaults makes the same run, so the options that a model may set are always in the link.
  const plain = { top_p: 1, min_p: 0, typical_p: 1, epsilon_cutoff: 0, eta_cutoff: 0, xtc_probability: 0, xtc_threshold: 0.1, repetition_penalty: 1, no_repeat_ngram_size: 0 };
  it('says how to make the run again', () => {
    const recipe = recipeOf(forest.runs.get(fork().id)!, forest.runs, info().options)!;
    expect(recipe).toEqual({ prompt: 'The capital of France is', sampling: { ...plain, temperature: 0.8, top_k: 40, seed: 7, max_tokens: 12 }, turns: [{ at: 2, token: fork().tokens[2]!.id }] });
    expect(fromHash(toHash({ run: fork().id, at: 3, recipe }))).toEqual({ run: fork().id, at: 3, recipe });
  });
  it('has the options of a fork that differ from its parent’s, the default included', () => {
    const parent = forest.runs.get(run().id)!;
    const child = { ...parent, summary: { ...parent.summary, id: 'child', parent: run().id, fork_at: 1, reason: 'sampled' as const, sampling: { ...run().sampling, temperature: 1 } } };
    const options = info().options;
    expect(options.find((each) => each.name === 'temperature')!.default).toBe(1);
    expect(recipeOf(child, forest.runs, options)!.turns).toEqual([{ at: 1, sampling: { temperature: 1 } }]);
  });
  it('carries any text, and survives any nonsense', () => {
    const recipe = { prompt: '日本 “\u202e” <b>\n', sampling: {}, turns: [] };
    expect(fromHash(toHash({ run: null, at: null, recipe })).recipe).toEqual(recipe);
    expect(fromHash('#run=../../x&at=-1&make=%%%')).toEqual({ run: null, at: null, recipe: null });
    expect(fromHash('')).toEqual({ run: null, at: null, recipe: null });
  });
});

describe('the keys', () => {
  const nowhere: Parameters<typeof actionOf>[1] = { tag: 'BODY', role: null, type: null, editable: false };
  const press = (key: string, focus = nowhere) => actionOf({ key, ctrlKey: false, metaKey: false, altKey: false }, focus);
  it('each mean one thing', () => {
    const keys = KEYMAP.flatMap((each) => each.keys);
    expect(new Set(keys).size).toBe(keys.length);
    expect(new Set(KEYMAP.map((each) => each.action)).size).toBe(KEYMAP.length);
  });
  it('work on the page, and leave those alone who write', () => {
    expect([press(' '), press('.'), press('n'), press('?')]).toEqual(['play', 'step', 'next', 'help']);
    const writing = { ...nowhere, tag: 'TEXTAREA' };
    expect([press(' ', writing), press('n', writing), press('Escape', writing)]).toEqual([null, null, 'unpin']);
    expect(press('ArrowLeft', { ...nowhere, tag: 'INPUT', type: 'range' })).toBeNull();
    expect(press('Enter', { ...nowhere, tag: 'BUTTON' })).toBeNull();
    expect(press('Enter', { ...nowhere, tag: 'DIV', role: 'treeitem' })).toBe('fork');
    expect(actionOf({ key: 'c', ctrlKey: true, metaKey: false, altKey: false }, nowhere)).toBeNull();
  });
});
