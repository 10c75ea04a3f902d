import { describe, expect, it } from 'vitest';
import { within } from '../src/lib/chips';
import { Forest } from '../src/lib/forest';
import { layoutTree, type Layout, type View } from '../src/lib/layout';
import type { Token, WholeRun } from '../src/lib/types';
import { beams, events, fork, run } from './recorded';

function view(forest: Forest, id: string, more: Partial<View> = {}): View {
  return { run: forest.runs.get(id)!, focus: null, near: 3, alternatives: 3, open: new Set(), measure: (item) => 20 + 8 * item.label.length, tagWidth: (tag) => 6 * tag.length, gap: 20, ...more };
}
function grown(): Forest {
  const forest = new Forest();
  for (const event of events()) forest.apply(event);
  return forest;
}
function long(count: number): WholeRun {
  const base = run();
  const [one] = base.tokens;
  const tokens: Token[] = Array.from({ length: count }, (_, index) => ({ ...one!, index, node: `n${index}`, parent: index ? `n${index - 1}` : base.root }));
  return { ...base, tokens };
}
/** No two items of a row stand on the same place. */
function expectApart({ placed }: Layout): void {
  const rows = new Map<number, [number, number][]>();
  for (const each of placed) rows.set(each.row, [...(rows.get(each.row) ?? []), [each.x, each.x + each.width]]);
  for (const taken of rows.values()) {
    taken.sort((one, other) => one[0] - other[0]);
    for (let i = 1; i < taken.length; i++) expect(taken[i]![0]).toBeGreaterThanOrEqual(taken[i - 1]![1]);
  }
}

describe('the layout', () => {
  it('tells the end of a run from a beam that finished with the same token', () => {
    const whole = beams();
    const [beam] = whole.beams.filter((each) => each.parent_node === whole.tokens.at(-2)!.node);
    const end = { ...whole.tokens.at(-1)!, node: beam!.node };
    const forest = new Forest();
    forest.whole({ ...whole, tokens: whole.tokens.slice(0, -1), end });
    const { placed } = layoutTree(forest, view(forest, whole.id));
    expect(placed.some((each) => each.item.kind === 'end')).toBe(true);
    expect(new Set(placed.map((each) => each.item.key)).size).toBe(placed.length);
  });
  it('draws a shared beginning once and the run that is looked at in the first row', () => {
    const forest = grown();
    const layout = layoutTree(forest, view(forest, fork().id, { near: 50, focus: 2 }));
    const path = layout.placed.filter((each) => each.item.onPath);
    expect(path.every((each) => each.row === 0)).toBe(true);
    expect(path.filter((each) => each.item.kind === 'token').map((each) => each.item.place!.node)).toEqual(fork().tokens.map((token) => token.node));
    expect(new Set(layout.placed.map((each) => each.item.key)).size).toBe(layout.placed.length);
    expectApart(layout);
  });
  it('hangs the alternatives beside the token, without those that have a branch', () => {
    const forest = grown();
    const at = fork().fork_at!;
    const layout = layoutTree(forest, view(forest, run().id, { focus: at }));
    const hung = layout.placed.filter((each) => each.item.kind === 'alternative');
    const taken = [run().tokens[at]!.id, fork().tokens[at]!.id];
    const free = run().tokens[at]!.alternatives.filter((each) => !taken.includes(each.id));
    expect(hung.map((each) => each.item.alternative!.id)).toEqual(free.slice(0, 3).map((each) => each.id));
    expect(hung.every((each) => each.parent!.item.place!.node === run().tokens[at]!.parent)).toBe(true);
    expectApart(layout);
  });
  it('folds a long chain, but not near the token that is looked at', () => {
    const forest = new Forest();
    forest.whole(long(2000));
    const layout = layoutTree(forest, view(forest, run().id, { focus: 1000, alternatives: 5 }));
    expect(layout.placed.length).toBeLessThan(40);
    const near = layout.placed.filter((each) => each.item.kind === 'token' && Math.abs(each.item.index - 1000) <= 3);
    expect(near.map((each) => each.item.index)).toEqual([997, 998, 999, 1000, 1001, 1002, 1003]);
    const folded = layout.placed.filter((each) => each.item.kind === 'fold').reduce((sum, each) => sum + each.item.count, 0);
    expect(folded + layout.placed.filter((each) => each.item.kind === 'token').length).toBe(2000);
  });
  it('opens a fold, and still mounts only what is in sight', () => {
    const forest = new Forest();
    forest.whole(long(2000));
    const closed = layoutTree(forest, view(forest, run().id, { focus: 0 }));
    const fold = closed.placed.find((each) => each.item.kind === 'fold')!;
    const open = layoutTree(forest, view(forest, run().id, { focus: 0, open: new Set([fold.item.key]) }));
    expect(open.placed.length).toBeGreaterThan(1900);
    expect(within(open, { left: 10_000, right: 11_600, top: 0, bottom: 500 }).length).toBeLessThan(60);
  });
  it('is quick with 2,000 tokens', () => {
    const forest = new Forest();
    forest.whole(long(2000));
    const began = performance.now();
    for (let i = 0; i < 10; i++) layoutTree(forest, view(forest, run().id, { focus: 100 * i }));
    expect((performance.now() - began) / 10).toBeLessThan(30);
  });
  it('has a column of likely alternatives below each token near the selected one, apart from everything else', () => {
    const forest = grown();
    const whole = forest.runs.get(run().id)!;
    const layout = layoutTree(forest, view(forest, run().id, { focus: 1, near: 9, also: 2 }));
    const shown = layout.placed.filter((each) => each.item.kind === 'also');
    expect(shown.length).toBeGreaterThan(3);
    for (const { item, x, row } of shown) {
      const token = whole.tokens[item.index]!;
      const above = layout.placed.find((each) => each.item.place?.node === token.node && each.item.kind === 'token')!;
      expect([x, row > above.row, item.index]).toEqual([above.x, true, above.item.index]);
      expect(item.alternative!.id).not.toBe(token.id);
      expect(token.alternatives.some((each) => each.id === item.alternative!.id && each.raw_logprob! > Math.log(0.02))).toBe(true);
    }
    expect(shown.every((each) => each.item.index !== 1)).toBe(true);
    expect(new Set(layout.placed.map((each) => each.item.key)).size).toBe(layout.placed.length);
    expectApart(layout);
  });
  it('shows pruned beams with their scores', () => {
    const forest = new Forest();
    forest.whole(beams());
    const layout = layoutTree(forest, view(forest, beams().id));
    const pruned = beams().beams.filter((beam) => beam.fate === 'pruned');
    const drawn = layout.placed.filter((each) => each.item.place?.beam?.fate === 'pruned');
    expect(drawn.map((each) => each.item.place!.node).sort()).toEqual(pruned.map((beam) => beam.node).sort());
    const kept = new Set(beams().tokens.map((token) => token.node));
    for (const { item } of drawn) expect(item.tag.startsWith('pruned, log p −')).toBe(!kept.has(item.place!.node));
    expectApart(layout);
  });
  it('has the token that ended a run after the last, with its alternatives', () => {
    const forest = new Forest();
    const whole = run();
    const last = whole.tokens.at(-1)!;
    forest.whole({ ...whole, end: { ...last, index: whole.tokens.length, node: 'end', parent: last.node } });
    const layout = layoutTree(forest, view(forest, whole.id, { focus: whole.tokens.length }));
    const end = layout.placed.find((each) => each.item.kind === 'end')!;
    expect(end.item.focused && end.row === 0 && end.parent!.item.place!.node === last.node).toBe(true);
    const others = layout.placed.filter((each) => each.item.kind === 'alternative');
    expect(others.length).toBeGreaterThan(0);
    expect(others.every((each) => each.item.alternative!.id !== last.id && each.parent === end.parent)).toBe(true);
  });
  it('is empty where nothing is', () => {
    expect(layoutTree(new Forest(), view(grown(), run().id, { run: null })).placed).toEqual([]);
  });
});
