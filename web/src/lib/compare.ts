// Compares runs of one prompt: the first token that differs from the first run, and how much a run repeats itself.
// Only counts are computed here; every probability is the engine's.

import type { Forest, Run } from './forest';
import type { Token } from './types';
import { spoken } from './visible';

export interface Row {
  run: Run;
  parts: number | null; // the first token, from 0, that differs from the first run; null if none does
  distinct: number | null; // the share of different pairs of neighbouring tokens
}

export function compareRuns(forest: Forest, runs: readonly Run[]): Row[] {
  const first = runs[0];
  return runs.map((run) => {
    const shared = first ? forest.shared(first, run) : 0;
    const alike = run === first || (shared === run.tokens.length && shared === first?.tokens.length);
    return { run, parts: alike ? null : shared, distinct: distinctPairs(run.tokens) };
  });
}

const counted = new WeakMap<readonly Token[], { pairs: number; seen: Set<number> }>();

/** Returns the share of different pairs. While a run is written only the pairs that have come since are counted. */
export function distinctPairs(tokens: readonly Token[]): number | null {
  if (tokens.length < 2) return null;
  let known = counted.get(tokens);
  if (!known || known.pairs >= tokens.length) counted.set(tokens, (known = { pairs: 0, seen: new Set() }));
  for (; known.pairs < tokens.length - 1; known.pairs++) known.seen.add(tokens[known.pairs]!.id * 2 ** 26 + tokens[known.pairs + 1]!.id);
  return known.seen.size / known.pairs;
}

/** Returns the time that each token of a run took, in seconds; the first is counted from the request. */
export function pauses(run: Run): number[] {
  const own = run.summary.fork_at ?? 0;
  return run.tokens.slice(own).map((token, place, all) => Math.max(0, token.seconds - (place ? all[place - 1]!.seconds : 0)));
}

/** Returns at most this many characters of a run's text; a text that is cut ends in “…”. */
export function beginning(run: Run, characters: number): string {
  let text = run.summary.text;
  if (!text) for (let i = 0; i < run.tokens.length && text.length <= characters; i++) text += run.tokens[i]!.text;
  if (text.length <= characters) return text;
  const cut = Array.from(text.slice(0, characters)); // the cut may be inside a surrogate pair
  if (/[\ud800-\udbff]$/.test(cut.at(-1) ?? '')) cut.pop();
  return `${cut.join('').trimEnd()}…`;
}

const LONG = 2000; // characters
const hints = new WeakMap<Run, string>();

/** Returns the text of a run for a tooltip. */
export function hint(run: Run): string {
  let told = hints.get(run);
  if (told === undefined) hints.set(run, (told = spoken(beginning(run, LONG))));
  return told;
}
