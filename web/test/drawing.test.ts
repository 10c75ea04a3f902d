import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { promptCell, tokenCell, type Told } from '../src/lib/cells';
import { chipOf, tagsOf, wiresOf, within, type Chip, type Sight, promptLabel } from '../src/lib/chips';
import { beginning } from '../src/lib/compare';
import { Forest } from '../src/lib/forest';
import { Keeper } from '../src/lib/keep';
import { layoutTree, type Layout } from '../src/lib/layout';
import { Pace, TABLES, TREE } from '../src/lib/pace';
import { beyond, intoSight } from '../src/lib/scroll';
import { beams, events, fork, run } from './recorded';

const ALL = { left: -Infinity, right: Infinity, top: -Infinity, bottom: Infinity };
const NOTHING: Sight = { current: undefined, chosen: false, pulse: null, promptTokens: 5 };

function layoutOf(forest: Forest, id: string, focus: number | null): Layout {
  return layoutTree(forest, { run: forest.runs.get(id)!, focus, near: 3, alternatives: 3, open: new Set(), measure: (item) => 20 + 8 * item.label.length, tagWidth: (tag) => 6 * tag.length, gap: 20 });
}

describe('what is kept', () => {
  it('is each entry that says the same, and no other', () => {
    const keeper = new Keeper<{ key: string; x: number }>();
    const [a, b] = keeper.keep([{ key: 'a', x: 1 }, { key: 'b', x: 2 }]);
    const [b2, a2, c] = keeper.keep([{ key: 'b', x: 3 }, { key: 'a', x: 1 }, { key: 'c', x: 4 }]);
    expect(a2).toBe(a);
    expect(b2).not.toBe(b);
    expect([b2, c]).toEqual([{ key: 'b', x: 3 }, { key: 'c', x: 4 }]);
    expect(keeper.keep([])).toEqual([]);
    expect(keeper.keep([{ key: 'a', x: 1 }])[0]).not.toBe(a); // it had gone
  });
});

describe('the chips of the tree', () => {
  it('stay as they are where a branch has not grown', () => {
    const [forest, keeper] = [new Forest(), new Keeper<Chip>()];
    let before: Chip[] = [];
    let made = 0;
    for (const event of events()) {
      forest.apply(event);
      const layout = layoutOf(forest, run().id, null);
      const chips = keeper.keep(layout.placed.map((each) => chipOf(each, NOTHING)));
      expect(new Set(chips.map((chip) => chip.key)).size).toBe(chips.length);
      made += chips.filter((chip) => !before.includes(chip)).length;
      before = chips;
    }
    expect(made).toBeLessThan(5 * events().length); // one token changes its end of the tree, not the rest
  });
  it('of a branch beside the path keep their places while it is written', () => {
    const forest = new Forest();
    forest.whole(run());
    const keys: string[][] = [];
    const { tokens } = fork();
    for (let count = tokens.length - 3; count <= tokens.length; count++) {
      forest.whole({ ...fork(), tokens: tokens.slice(0, count) });
      const beside = layoutOf(forest, run().id, 0).placed.filter(({ item }) => item.run === fork().id && item.kind !== 'alternative');
      keys.push(beside.map(({ item }) => item.key));
    }
    for (const each of keys) expect(each).toEqual(keys[0]);
  });
  it('say what the tree says: names, wires and tags', () => {
    const forest = new Forest();
    forest.whole(beams());
    const layout = layoutOf(forest, beams().id, 0);
    const chips = within(layout, ALL).map((each) => chipOf(each, NOTHING));
    expect(chips).toHaveLength(layout.placed.length);
    expect(chips.find((chip) => chip.kind === 'prompt')).toMatchObject({ piece: 'prompt · 5', name: 'The prompt, 5 tokens' });
    expect(chips.some((chip) => chip.look.includes('pruned') && chip.name.includes('pruned'))).toBe(true);
    for (const chip of chips.filter((each) => each.kind === 'token')) expect(chip.name).toContain(`token ${chip.index}`);
    expect(chips.filter((each) => each.kind === 'token' && each.level === 2).map((each) => each.index)).toContain(0); // counted from 0
    expect(wiresOf(layout, ALL)).toHaveLength(layout.placed.length - 1);
    expect(tagsOf(layout.placed).every((tag) => tag.text !== '')).toBe(true);
    const [focused] = layout.placed.filter((each) => each.item.focused);
    expect(chipOf(focused!, { ...NOTHING, current: focused, chosen: true }).look).toMatch(/focused chosen/);
  });
});

it('a path is not pruned where a beam ended on it', () => {
  const forest = new Forest();
  const searched = beams();
  const last = searched.tokens.at(-1)!;
  forest.whole({ ...searched, beams: [...searched.beams.filter((beam) => beam.node !== last.node), { ...searched.beams[0]!, number: 99, node: last.node, parent_node: last.parent, id: last.id, fate: 'pruned' }] });
  const layout = layoutOf(forest, searched.id, 0);
  const drawn = within(layout, ALL).map((each) => chipOf(each, NOTHING));
  expect(drawn.filter((chip) => chip.look.includes('path') && (chip.look.includes('pruned') || chip.name.includes('pruned')))).toEqual([]);
  expect(wiresOf(layout, ALL).filter((wire) => wire.key === last.node).map((wire) => wire.look)).toEqual(['path']);
});

it('the cells of the text say where it stands', () => {
  const [one, two] = run().tokens;
  const told: Told = { end: null, pin: 1, focus: 1, shown: 1, playedBack: true, moving: true, drafts: false };
  expect(tokenCell(one!, told).look).toBe('token sampled newest');
  expect(tokenCell(two!, told).look).toBe('token sampled pinned later');
  expect(tokenCell(two!, { ...told, pin: null }).look).toBe('token sampled later');
  expect(tokenCell(two!, { ...told, pin: null, moving: false }).look).toBe('token sampled focused later');
  expect(tokenCell(one!, told).title).toMatch(/^token 0: .* %, rank \d+$/);
  expect(promptCell(run().prompt_tokens[0]!, -1, { ...told, shown: 0 }).look).toBe('token given last');
});

it('a run is told by its beginning, written or not', () => {
  const forest = new Forest();
  const whole = forest.whole(run());
  const unwritten = { ...whole, summary: { ...whole.summary, text: '' } };
  expect(beginning(whole, 12)).toBe(`${run().text.slice(0, 12)}…`);
  expect(beginning(unwritten, 12)).toBe(`${run().tokens.map((token) => token.text).join('').slice(0, 12)}…`);
  for (const each of [whole, unwritten]) expect(beginning(each, Infinity)).toBe(run().text);
  expect(beginning({ ...whole, summary: { ...whole.summary, text: 'ab' } }, 2)).toBe('ab'); // not cut
  expect(beginning({ ...whole, summary: { ...whole.summary, text: 'a😀b' } }, 2)).toBe('a…'); // no half of a character
});

describe('the pace', () => {
  beforeEach(() => vi.useFakeTimers());
  afterEach(() => vi.useRealTimers());
  function drawn(branches: number, tempo = TREE): number {
    let count = 0;
    const pace = new Pace(tempo, () => count++);
    for (let ms = 0; ms < 2000; ms += 16) {
      pace.ask(branches);
      vi.advanceTimersByTime(16);
    }
    return count;
  }

  it('is each frame for one branch, and some eight a second for many', () => {
    expect(drawn(1)).toBe(125);
    expect(drawn(16)).toBeLessThanOrEqual(18);
    expect(drawn(500)).toBeGreaterThan(14);
    expect(drawn(16, TABLES)).toBeLessThanOrEqual(5);
  });
  it('draws what came last, and at once where somebody did something', () => {
    const draw = vi.fn();
    const pace = new Pace(TREE, draw);
    pace.ask(16);
    pace.ask(16);
    expect(draw).toHaveBeenCalledTimes(1);
    pace.go();
    expect(draw).toHaveBeenCalledTimes(2);
    vi.advanceTimersByTime(1000);
    expect(draw).toHaveBeenCalledTimes(2);
    pace.ask(16);
    pace.ask(16);
    vi.advanceTimersByTime(1000);
    expect(draw).toHaveBeenCalledTimes(4);
  });
});

it('scrolls only to what is not in sight, and not beyond the end', () => {
  const [window, all] = [{ width: 800, height: 300 }, { width: 2000, height: 600 }];
  const at = (left: number, top = 0) => ({ left, top, width: 50, height: 34 });
  expect(intoSight(at(300), { left: 0, top: 0 }, window, all)).toEqual({ left: 0, top: 0 });
  expect(intoSight(at(1000), { left: 0, top: 0 }, window, all)).toEqual({ left: 692, top: 0 });
  expect(intoSight(at(1990, 590), { left: 0, top: 0 }, window, all)).toEqual({ left: 1200, top: 300 });
  expect(intoSight(at(0), { left: 700, top: 0 }, window, all)).toEqual({ left: 0, top: 0 });
});

it('scrolls a row into sight, no further, and a high one to its beginning', () => {
  const box = { top: 100, bottom: 200 };
  const by = (top: number, height: number) => beyond({ top, bottom: top + height }, box);
  expect([by(100, 20), by(180, 20), by(190, 20), by(250, 20), by(60, 20), by(130, 300)]).toEqual([0, 0, 10, 70, -40, 30]);
});

it('does not guess how many tokens a prompt has', () => {
  expect([promptLabel(5), promptLabel(null)]).toEqual(['prompt · 5', 'prompt · unknown']);
});
