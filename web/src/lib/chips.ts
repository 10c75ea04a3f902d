// The parts of the token tree as plain records: a chip for each visible item, a wire to its parent, and a tag at the
// end of a branch. Records can be compared, so that only those that changed update the page.

import { linkHorizontal } from 'd3-shape';
import { guessTold } from './drafts';
import { isPruned } from './forest';
import { count, percent } from './format';
import type { Item, Layout, Placed } from './layout';
import type { Refusal } from './types';
import { spoken } from './visible';

export const ROW = 30;
const CHIP = 24;
const [THIN, THICK] = [1.25, 7]; // pixels: wires of probability 0 and 1
const LONGEST_TAG = 46;
const SURE_TO_FIT = 16; // characters, however wide

export interface Chip {
  readonly key: string;
  readonly kind: Item['kind'];
  readonly piece: string; // the token's text, or the label of another kind of item
  readonly name: string; // for screen readers
  readonly look: string; // CSS classes
  readonly box: string; // its position, as CSS
  readonly level: number;
  readonly index: number;
  readonly run: string;
  readonly id: number | undefined; // the token id
  readonly focused: boolean;
  readonly current: boolean;
  readonly source: string;
  readonly share: string; // an alternative's probability by the model itself
  readonly refused: Refusal | null;
  readonly guess: string;
  readonly hint: string | undefined; // the whole label, if it may be cut
}

export interface Wire {
  readonly key: string;
  readonly look: string;
  readonly width: number; // pixels, by the probability of the token that it leads to
  readonly d: string;
}

export interface Tag {
  readonly key: string;
  readonly text: string;
  readonly box: string;
}

export interface Window {
  left: number;
  right: number;
  top: number;
  bottom: number;
}

export interface Sight {
  current: Placed | undefined; // the selected item: always in the DOM, because removing it would lose the focus
  chosen: boolean; // whether it is an alternative selected by keyboard
  pulse: number | null; // the alternative that pulses
  promptTokens: number | null; // null: not known
}

export const cut = (tag: string): string => (tag.length > LONGEST_TAG ? `${tag.slice(0, LONGEST_TAG - 1)}…` : tag);
export const promptLabel = (tokens: number | null): string => `prompt · ${count(tokens)}`;

/** Returns the items within the window; the others need not be in the DOM. */
export function within({ placed }: Layout, { left, right, top, bottom }: Window, also?: Placed): Placed[] {
  return placed.filter((each) => {
    const y = each.row * ROW;
    return each === also || (each.x + each.width >= left && each.x <= right && y + ROW >= top && y <= bottom);
  });
}

export function chipOf({ item, x, row, width, level }: Placed, sight: Sight): Chip {
  const { key, kind, index, run, focused, place, alternative, refused } = item;
  const current = sight.current?.item === item;
  const probability = likelihood(item);
  const source = kind === 'token' ? (place?.source ?? '') : '';
  const guess = guessTold(source, refused, item.piece);
  const look = ['item', kind, ...(source ? [source] : [])];
  if (item.label.length > SURE_TO_FIT) look.push('long');
  if (item.onPath) look.push('path');
  if (focused) look.push('focused');
  if (current && sight.chosen) look.push('chosen');
  if (kind === 'token' && isPruned(place)) look.push('pruned');
  if (alternative && alternative.logprob === null) look.push('removed');
  if (alternative && alternative.id === sight.pulse) look.push('pulse');
  return {
    key, kind, index, run, level, focused, current, source, refused, guess,
    piece: kind === 'prompt' ? promptLabel(sight.promptTokens) : kind === 'fold' || kind === 'more' ? item.label : item.piece,
    name: nameOf(item, guess, sight.promptTokens),
    look: look.join(' '),
    box: `left:${x}px;top:${row * ROW}px;width:${width}px${probability === null ? '' : `;--p:${probability.toFixed(3)}`}`,
    id: alternative?.id ?? place?.id,
    share: kind === 'alternative' && alternative ? percent(alternative.raw_logprob) : '',
    hint: item.label.length > SURE_TO_FIT ? item.label : undefined,
  };
}

/** Returns the model's own probability of the token of an item, or null where it is not known. */
function likelihood({ kind, alternative, place }: Item): number | null {
  const raw = alternative ? alternative.raw_logprob : kind === 'token' ? (place?.raw ?? null) : null;
  return raw === null ? null : Math.exp(raw);
}

export function tagsOf(placed: readonly Placed[]): Tag[] {
  const ends = placed.filter(({ item }) => item.tag && item.children.length === 0);
  return ends.map(({ item, x, row, width }) => ({ key: item.key, text: item.tag, box: `left:${x + width + 8}px;top:${row * ROW}px` }));
}

const drawn = linkHorizontal<Placed, [number, number]>()
  .source(({ parent }) => [parent!.x + parent!.width, parent!.row * ROW + CHIP / 2])
  .target((each) => [each.x, each.row * ROW + CHIP / 2]);

export function wiresOf({ placed }: Layout, { left, right, top, bottom }: Window): Wire[] {
  const made: Wire[] = [];
  for (const each of placed) {
    const { item, parent } = each;
    if (!parent || item.kind === 'also' || each.x < left || parent.x > right || Math.max(each.row, parent.row) * ROW + ROW < top || Math.min(each.row, parent.row) * ROW > bottom) continue;
    const ghost = item.kind === 'alternative' || item.kind === 'more';
    const look = item.onPath ? 'path' : ghost ? 'ghost' : isPruned(item.place) ? 'pruned' : '';
    const width = Math.round(10 * (THIN + (THICK - THIN) * (likelihood(item) ?? 0))) / 10;
    made.push({ key: item.key, look, width, d: drawn(each) ?? '' });
  }
  return made;
}

function nameOf(item: Item, guess: string, promptTokens: number | null): string {
  if (item.kind === 'prompt') return `The prompt, ${count(promptTokens)} tokens`;
  if (item.kind === 'fold') return `${count(item.count)} tokens, folded`;
  if (item.kind === 'more') return `${item.count} more alternatives`;
  if (item.alternative) return `Alternative “${spoken(item.piece)}”, ${percent(item.alternative.raw_logprob)}. Fork`;
  const told = guess && `, ${guess}`;
  if (item.kind === 'end') return `The end, “${spoken(item.piece)}”${told}`;
  const fate = isPruned(item.place) ? ', pruned' : '';
  // In the order in which it is seen: the rejected draft, then the token.
  const draft = item.refused ? `“${spoken(item.refused.text)}” → ` : '';
  const likely = item.place ? `, ${percent(item.place.raw)}` : '';
  return `${draft}“${spoken(item.piece)}”, token ${item.index}${likely}${fate}${told}${item.tag ? `, end of ${item.tag}` : ''}`;
}
