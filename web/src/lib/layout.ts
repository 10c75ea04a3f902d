// Computes the position of each item of the token tree. A shared beginning is drawn once; a chain without branches is
// folded into one item, except near the selected token; the alternatives of that token are drawn below it, and a few
// likely ones below each token near it, so that a row of tokens is a row of columns.

import { hierarchy, type HierarchyNode } from 'd3-hierarchy';
import { isPruned, nameOf, type Forest, type Place, type Run } from './forest';
import { count, decimal } from './format';
import { shown } from './visible';
import type { Alternative, Refusal } from './types';

export type ItemKind = 'prompt' | 'token' | 'fold' | 'alternative' | 'also' | 'more' | 'end'; // also: an alternative of a token that is not selected

export interface Item {
  key: string;
  kind: ItemKind;
  label: string;
  piece: string;
  run: string; // the run that a click selects
  index: number; // of the token, or of the first token of a fold
  count: number; // tokens in a fold, or alternatives that are not shown
  onPath: boolean; // whether it belongs to the selected run
  focused: boolean;
  place: Place | null;
  alternative: Alternative | null;
  refused: Refusal | null; // a rejected draft for this place
  tag: string; // the name of the branch, at its end
  children: Item[];
}

export interface Placed {
  item: Item;
  x: number;
  row: number;
  width: number;
  level: number;
  parent: Placed | null;
}

export interface Layout {
  placed: Placed[];
  width: number;
  rows: number;
}

export interface View {
  run: Run | null;
  focus: number | null; // the selected token
  near: number; // tokens on either side of it that stay unfolded
  ends?: number; // tokens at either end of a chain that stay unfolded; 2 by default
  alternatives: number; // how many are drawn below it
  also?: number; // how many likely ones are drawn below each other token near it
  open: ReadonlySet<string>; // folds that were clicked
  measure: (item: Item) => number;
  tagWidth: (tag: string) => number;
  gap: number;
}

export function layoutTree(forest: Forest, view: View): Layout {
  const root = build(forest, view);
  return root ? arrange(root, view) : { placed: [], width: 0, rows: 0 };
}

// ── what is shown ───────────────────────────────────────────────────────────────────────────────────────────

let drawings = 0; // places carry the number of the drawing: a set of thousands of nodes would take longer

function build(forest: Forest, view: View): Item | null {
  const rootNode = view.run?.summary.root ?? forest.roots[0];
  const rootPlace = rootNode === undefined ? undefined : forest.places.get(rootNode);
  if (!rootPlace) return null;
  const drawing = ++drawings;
  for (const { node } of view.run?.tokens ?? []) {
    const place = forest.places.get(node);
    if (place) place.path = drawing;
  }
  const ends = endings(forest);
  for (const node of ends.keys()) {
    const place = forest.places.get(node);
    if (place) place.end = drawing;
  }
  const root = item('prompt', rootPlace, { label: 'prompt', onPath: true, run: view.run?.summary.id ?? rootPlace.run, index: -1 });
  const stack: { place: Place; item: Item }[] = [{ place: rootPlace, item: root }];
  while (stack.length) {
    const { place, item: above } = stack.pop()!;
    const next = ordered(place, drawing);
    for (const child of next) {
      const chain = chainFrom(child, view, drawing);
      let last = above;
      for (const made of folded(chain, view, drawing)) {
        last.children.push(made, ...also(made, child === made.place ? next : [], view));
        last = made;
      }
      stack.push({ place: chain.at(-1)!, item: last });
    }
    above.children.push(...ending(place, view), ...alternatives(place, next, view));
    const tag = ends.get(place.node);
    if (tag) above.tag = tag;
  }
  return root;
}

/** Returns the children with that of the selected run first, so that its line stays straight. */
function ordered({ children }: Place, drawing: number): Place[] {
  return [...children.filter((each) => each.path === drawing), ...children.filter((each) => each.path !== drawing)];
}

/** Returns a place and those after it, up to the next branch, end or list of alternatives. */
function chainFrom(first: Place, view: View, drawing: number): Place[] {
  const chain = [first];
  for (let place = first; place.children.length === 1 && place.end !== drawing; ) {
    if (place.path === drawing && place.depth === view.focus) break;
    place = place.children[0]!;
    chain.push(place);
  }
  return chain;
}

/** Returns the items of a chain. The tokens between its ends and those near the selected one are one item. */
function folded(chain: Place[], view: View, drawing: number): Item[] {
  const made: Item[] = [];
  const ends = view.ends ?? 2;
  const hide = (hidden: Place[]): void => {
    const first = hidden[0]!;
    if (hidden.length > 1 && !view.open.has(first.node)) made.push(item('fold', first, { label: `${count(hidden.length)} tokens`, count: hidden.length, ...whose(first, view, drawing) }));
    else made.push(...hidden.map((place) => token(place, view, drawing)));
  };
  const rest = Math.max(ends, chain.length - ends); // where the last few begin
  const selected = view.focus === null || chain[0]!.path !== drawing ? null : view.focus + 1 - chain[0]!.depth;
  const isNear = (at: number): boolean => selected !== null && Math.abs(at - selected) <= view.near && chain[at]!.path === drawing;
  for (let at = 0; at < chain.length; ) {
    const first = at < ends;
    const last = at >= chain.length - ends;
    if (!first && !last && !isNear(at)) {
      const near = selected === null ? rest : Math.max(at + 1, selected - view.near);
      const to = near < rest && isNear(near) ? near : rest;
      hide(chain.slice(at, to));
      at = to;
      continue;
    }
    const one = token(chain[at]!, view, drawing);
    // The keys of the last few items beside the path count from the end: while a branch grows, their elements are
    // updated instead of replaced.
    if (last && !first && !one.onPath) one.key = `${chain[0]!.node}~${chain.length - at}`;
    made.push(one);
    at++;
  }
  return made;
}

function token(place: Place, view: View, drawing: number): Item {
  const of = whose(place, view, drawing);
  return item('token', place, { label: shown(place.piece), refused: place.refused, ...of, focused: of.onPath && place.depth - 1 === view.focus });
}

function whose(place: Place, view: View, drawing: number): { run: string; index: number; onPath: boolean } {
  const onPath = place.path === drawing;
  return { run: onPath && view.run ? view.run.summary.id : place.run, index: place.depth - 1, onPath };
}

/** Returns the token that ended the run, as an item after the last token of the text. */
function ending(place: Place, view: View): Item[] {
  const end = view.run?.end;
  if (!view.run || !end || end.parent !== place.node) return [];
  const index = view.run.tokens.length;
  // A finished beam has a place for this token as well.
  return [item('end', place, { key: `${end.node}:end`, label: shown(end.piece), piece: end.piece, refused: end.refused, run: view.run.summary.id, index, onPath: true, focused: view.focus === index })];
}

/** Returns the alternatives of the selected token that have no branch yet. */
function alternatives(place: Place, taken: Place[], view: View): Item[] {
  if (view.run === null || view.focus === null || place.depth !== view.focus) return [];
  const at = view.focus === view.run.tokens.length ? view.run.end : view.run.tokens[view.focus];
  const before = view.focus === 0 ? view.run.summary.root : view.run.tokens[view.focus - 1]?.node;
  if (!at || before !== place.node) return [];
  const has = new Set([at.id, ...taken.map((each) => each.id)]);
  const left = at.alternatives.filter((each) => !has.has(each.id));
  const few = left.slice(0, view.alternatives);
  const common = { run: view.run.summary.id, index: view.focus, onPath: false };
  const made = few.map((each) =>
    item('alternative', place, { ...common, key: `${place.node}:${each.id}`, label: shown(each.text), piece: each.text, alternative: each }),
  );
  const more = left.length - few.length;
  if (more > 0) made.push(item('more', place, { ...common, key: `${place.node}:more`, label: `${more} more`, count: more }));
  return made;
}

const LIKELY = Math.log(0.02); // less likely alternatives are shown only below the selected token

/** Returns a few likely alternatives of a token of the selected run that have no branch yet. */
function also({ kind, place, index, onPath, focused }: Item, taken: readonly Place[], view: View): Item[] {
  const token = kind === 'token' && onPath && !focused && view.also ? view.run?.tokens[index] : undefined;
  if (!token || !place) return [];
  const made: Item[] = [];
  for (const each of token.alternatives) {
    if (made.length === view.also || (each.raw_logprob ?? -Infinity) < LIKELY) break;
    if (each.id === token.id || taken.some((other) => other.id === each.id)) continue;
    made.push(item('also', place, { key: `${token.parent}:${each.id}`, label: shown(each.text), piece: each.text, alternative: each, run: view.run!.summary.id, index, onPath: false, refused: null }));
  }
  return made;
}

/** Returns the tag of each node at which a run or a beam ends. */
function endings(forest: Forest): Map<string, string> {
  const tags = new Map<string, string>();
  for (const run of forest.runs.values()) {
    const node = run.tokens.at(-1)?.node ?? run.summary.root;
    const reused = run.summary.parent !== null && (run.summary.usage.cached_tokens ?? 0) > 0 ? ` · ${count(run.summary.usage.cached_tokens)} tokens of cache reused` : '';
    const tag = nameOf(run) + reused;
    tags.set(node, tags.has(node) ? `${tags.get(node)}, ${tag}` : tag);
  }
  for (const run of forest.runs.values())
    for (const beam of run.beams)
      if ((beam.fate === 'pruned' && isPruned(forest.places.get(beam.node) ?? null)) || beam.fate === 'finished') tags.set(beam.node, tags.get(beam.node) ?? `${beam.fate}, log p ${decimal(beam.logprob)}`);
  return tags;
}

function item(kind: ItemKind, place: Place, more: Partial<Item>): Item {
  const base: Item = {
    key: place.node, kind, label: '', piece: place.piece, run: place.run, index: place.depth - 1, count: 0,
    onPath: false, focused: false, place, alternative: null, refused: null, tag: '', children: [],
  };
  return { ...base, ...more };
}

// ── where it stands ─────────────────────────────────────────────────────────────────────────────────────────

function arrange(root: Item, view: View): Layout {
  const tree = hierarchy(root, (each) => each.children);
  const at = new Map<HierarchyNode<Item>, Placed>();
  const columns = new Map<Placed, number>(); // the width of the column below an item, where it is wider than the item
  let width = 0;
  tree.eachBefore((node) => {
    const parent = node.parent ? at.get(node.parent)! : null;
    const own = view.measure(node.data);
    const x = parent ? parent.x + (columns.get(parent) ?? parent.width) + view.gap : 0;
    const placed = { item: node.data, x, row: 0, width: own, level: node.depth + 1, parent };
    at.set(node, placed);
    let column = own;
    if (view.also && node.children && node.parent?.children?.[0] === node) for (const { data } of node.parent.children) if (isGhost(data)) column = Math.max(column, view.measure(data));
    if (column > own) columns.set(placed, column);
    width = Math.max(width, x + own);
  });
  const rows = new Rows();
  const waiting = [tree];
  while (waiting.length) {
    const line = lineOf(waiting.pop()!);
    const [first, last] = [at.get(line[0]!)!, at.get(line.at(-1)!)!];
    const tag = last.item.tag ? view.tagWidth(last.item.tag) : 0;
    const row = rows.take(first.parent ? first.parent.row + 1 : 0, first.x - view.gap / 2, last.x + last.width + tag + view.gap / 2);
    for (const node of line) at.get(node)!.row = row;
    // A stack: the alternatives of a line come next, then its branches from right to left.
    const off = line.flatMap((node) => node.children?.slice(1) ?? []);
    const ghosts = off.filter((node) => isGhost(node.data)).reverse();
    waiting.push(...off.filter((node) => !isGhost(node.data)), ...ghosts);
  }
  return { placed: [...at.values()], width, rows: rows.count };
}

const isGhost = (each: Item): boolean => each.kind === 'alternative' || each.kind === 'also' || each.kind === 'more';

/** Returns an item and those in its row: the first child, its first child, and so on. */
function lineOf(node: HierarchyNode<Item>): HierarchyNode<Item>[] {
  const line = [node];
  for (let next = node.children?.[0]; next; next = next.children?.[0]) line.push(next);
  return line;
}

/** The occupied parts of the rows. */
class Rows {
  private readonly taken: [number, number][][] = [];

  get count(): number {
    return this.taken.length;
  }

  /** Occupies and returns the first row from this one down that is free between two positions. */
  take(from: number, left: number, right: number): number {
    let row = from;
    while (this.taken[row]?.some(([start, end]) => start < right && end > left)) row++;
    (this.taken[row] ??= []).push([left, right]);
    return row;
  }
}
