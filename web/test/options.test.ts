import { describe, expect, it } from 'vitest';
import { Forest } from '../src/lib/forest';
import { actionOf, KEYMAP } from '../src/lib/keymap';
import { fromHash, recipeOf, toHash } from '../src/lib/link';
import { changed, DEFAULT, grouped, read, SLIDERS, STRATEGIES, write } from '../src/lib/options';
import { TOUR } from '../src/lib/tour';
import type { Option } from '../src/lib/types';
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
    for (const name of [...SLIDERS.map((each) => each.name), ...[DEFAULT, ...STRATEGIES].flatMap((each) => Object.keys(each.sampling))]) expect(known).toContain(name);
    for (const step of TOUR) for (const name of Object.keys(step.start?.sampling ?? {})) expect(known).toContain(name);
    expect(TOUR).toHaveLength(8);
  });
  it('that differ from the defaults are all that is kept', () => {
    expect(changed(run().sampling, info().options)).toMatchObject({ temperature: 0.8, top_k: 40, seed: 7, max_tokens: 12 });
  });
});

describe('a link', () => {
  const forest = new Forest();
  for (const event of events()) forest.apply(event);
  it('says how to make the run again', () => {
    const recipe = recipeOf(forest.runs.get(fork().id)!, forest.runs, info().options)!;
    expect(recipe).toEqual({ prompt: 'The capital of France is', sampling: { temperature: 0.8, top_k: 40, seed: 7, max_tokens: 12 }, turns: [{ at: 2, token: fork().tokens[2]!.id }] });
    expect(fromHash(toHash({ run: fork().id, at: 3, recipe }))).toEqual({ run: fork().id, at: 3, recipe });
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
