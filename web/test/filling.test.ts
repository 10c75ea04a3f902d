import { describe, expect, it } from 'vitest';
import { changesOf, explainedBy, filledBy, optionsOf, passTold, spotsAt, spotTold, takenBefore } from '../src/lib/filling';
import { Forest, nameOf } from '../src/lib/forest';
import { fromHash, recipeOf, toHash } from '../src/lib/link';
import { bodyOf } from '../src/lib/editing';
import { drafterTold, guessTold } from '../src/lib/drafts';
import { info, passes, passEvents } from './recorded';

const frames = () => passes().frames;
const grown = (): Forest => {
  const forest = new Forest();
  for (const event of passEvents()) expect(forest.apply(event)).toBe(true);
  return forest;
};

describe('a text that is filled in passes', () => {
  it('is followed pass by pass, and has the passes that the server keeps', () => {
    const forest = grown();
    const run = forest.runs.get(passes().run)!;
    expect(run.frames).toEqual(frames());
    expect(run.summary.passes).toBe(run.frames.length);
    expect(run.tokens.every((token) => token.source === 'mask')).toBe(true);
    expect(nameOf(run)).toBe(`diffusion, seed ${run.summary.seed}`);
  });
  it('takes frames in any portion, each once, and says when one is missing', () => {
    const forest = new Forest();
    const [first] = passEvents();
    forest.apply(first!);
    const id = passes().run;
    expect(forest.filled('another', frames())).toBe(false);
    expect(forest.filled(id, frames().slice(1))).toBe(false);
    expect(forest.runs.get(id)!.frames).toEqual([]);
    for (const part of [frames().slice(0, 3), frames().slice(1, 5), frames(), frames()]) expect(forest.filled(id, part)).toBe(true);
    expect(forest.runs.get(id)!.frames).toEqual(frames());
  });
  it('has after its last pass the text of the run, and after each pass no more than the passes filled', () => {
    const run = grown().runs.get(passes().run)!;
    const all = frames();
    expect(spotsAt(all, all.length - 1).map(({ cell }) => cell.id).slice(0, run.tokens.length)).toEqual(run.tokens.map((token) => token.id));
    let known = 0;
    all.forEach((frame, at) => {
      const spots = spotsAt(all, at);
      expect(spots.map(({ place }) => place)).toEqual(spots.map((_, i) => i));
      known += filledBy(frame) - takenBefore(frame);
      expect(spots.filter(({ cell }) => cell.text !== null)).toHaveLength(known);
      expect(spots.filter(({ isFinal }) => isFinal)).toHaveLength(frame.first);
      expect(spots.filter(({ cell }) => cell.changed).map(({ place }) => place)).toEqual(changesOf(frame).map(({ place }) => place));
    });
    expect(all.some((frame) => takenBefore(frame) > 0)).toBe(true);
    expect(spotsAt([], 0)).toEqual([]);
  });
  it('says why a place is as it is, in the pass that filled it or in the one that left it', () => {
    const all = frames();
    const at = all.findIndex((frame) => takenBefore(frame) > 0);
    const spot = spotsAt(all, at).find(({ cell }) => cell.taken_back !== null)!;
    expect(spotTold(spot)).toContain(`was taken back (${spot.cell.reason})`);
    const filled = { ...spot.cell, text: ' new', confidence: 0.5, raw_logprob: -1, entropy: 1, pass: 0 };
    expect(spotTold({ ...spot, cell: filled })).toContain(`“${spot.cell.taken_back}” → “ new”`);
    expect(passTold(all[at]!)).toMatch(/^filled \d+, \d+ taken back before it$/);
    for (const each of spotsAt(all, at)) expect(explainedBy(each, at)).toBe(each.cell.text === null ? at : each.cell.pass);
    const mask = spotsAt(all, 0).find(({ cell }) => cell.text === null)!;
    expect(spotTold(mask)).toBe(`place ${mask.place}: masked`);
    expect(spotTold({ ...mask, cell: { ...all[0]!.cells[0]!, text: '\u202ex', confidence: 0.5, raw_logprob: -1, entropy: 1, pass: 0 } })).toContain('U+202Ex');
  });
  it('is asked for with the options that are given, and made again from a link', () => {
    expect(optionsOf({ block: '8', passes: ' ', threshold: '0.5', revise: '0' })).toEqual({ block: 8, threshold: 0.5, revise: 0 });
    expect(optionsOf({ block: 'many', passes: '', threshold: '', revise: '' })).toEqual({ block: 'many' });
    const forest = grown();
    const run = forest.runs.get(passes().run)!;
    const { recipe } = fromHash(toHash({ run: run.summary.id, at: null, recipe: recipeOf(run, forest.runs, info().options) }));
    expect(recipe!.diffusion).toMatchObject({ block: 6, passes: 3, revise: 1 });
    expect(recipe!.diffusion).not.toHaveProperty('adapter');
  });
});

it('holes and repairs are proposed by diffusion where that is asked for, and nothing else is', () => {
  for (const kind of ['infill', 'repair'] as const) {
    expect(bodyOf(kind, 'a b', [1, 1], {}, 'diffusion')).toMatchObject({ proposer: 'diffusion' });
    expect(bodyOf(kind, 'a b', [1, 1], {})).not.toHaveProperty('proposer');
  }
  for (const kind of ['rewrite', 'sharpen'] as const) expect(bodyOf(kind, 'a b', [0, 1], {}, 'diffusion')).not.toHaveProperty('proposer');
});

it('names each drafter', () => {
  for (const by of ['lookup', 'model', 'masks'] as const) expect(guessTold('sampled', { id: 1, text: 'a', by, dropped: 0 }, 'b')).toMatch(/^the .* proposed “a”, the model chose “b”$/);
  expect(drafterTold('drafter')).toMatch(/trained for this model/);
  expect([drafterTold(null), drafterTold(undefined)]).toEqual([null, null]);
});
