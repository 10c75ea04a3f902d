import { describe, expect, it } from 'vitest';
import { compareRuns, pauses } from '../src/lib/compare';
import { Forest, nameOf } from '../src/lib/forest';
import { beams, events, fork, run } from './recorded';

function grown(): Forest {
  const forest = new Forest();
  for (const event of events()) expect(forest.apply(event)).toBe(true);
  return forest;
}

describe('a forest', () => {
  it('has after all events the tokens that the server has', () => {
    const forest = grown();
    for (const whole of [run(), fork()]) expect(forest.runs.get(whole.id)!.tokens).toMatchObject(whole.tokens);
  });
  it('does not change when told the same again, in any way', () => {
    const forest = grown();
    const before = [...forest.places.keys()];
    for (const event of events()) forest.apply(event);
    forest.whole(fork());
    forest.whole(run());
    expect([...forest.places.keys()]).toEqual(before);
    expect(forest.runs.get(run().id)!.tokens).toMatchObject(run().tokens);
  });
  it('has what runs share once', () => {
    const forest = grown();
    const [one, other] = [forest.runs.get(run().id)!, forest.runs.get(fork().id)!];
    const at = other.summary.fork_at!;
    expect(forest.shared(one, other)).toBe(at);
    expect(forest.places.size).toBe(1 + one.tokens.length + other.tokens.length - at);
    expect(forest.places.get(one.tokens[at - 1]!.node)!.children).toHaveLength(2);
  });
  it('says when something is missing instead of leaving a hole', () => {
    const forest = new Forest();
    const [begin, , third] = events();
    expect(forest.apply(third!)).toBe(false);
    forest.apply(begin!);
    expect(forest.apply(third!)).toBe(false);
    expect(forest.runs.get(run().id)!.tokens).toHaveLength(0);
  });
  it('keeps every beam with its fate', () => {
    const forest = new Forest();
    forest.whole(beams());
    for (const beam of beams().beams) expect(forest.places.get(beam.node)!.beam).toEqual(beam);
    expect(beams().beams.some((beam) => beam.fate === 'pruned')).toBe(true);
  });
});

it('compares runs: where they part, and how long each token took', () => {
  const forest = grown();
  const rows = compareRuns(forest, [forest.runs.get(run().id)!, forest.runs.get(fork().id)!]);
  expect(rows.map((row) => row.parts)).toEqual([null, fork().fork_at]);
  expect(rows.map((row) => nameOf(row.run))).toEqual(['seed 7', 'fork']);
  expect(pauses(rows[0]!.run)).toEqual(run().tokens.map((token) => token.took));
  expect(pauses(rows[1]!.run)).toEqual(fork().tokens.slice(fork().fork_at!).map((token) => token.took));
});
