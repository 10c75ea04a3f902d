// Compares runs of one prompt: the first token that differs from the first run, and how much a run repeats itself.
// Only counts are computed here; every probability is the engine's.

import type { Forest, Run } from './forest';

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
    return { run, parts: alike ? null : shared, distinct: distinctPairs(run.tokens.map((token) => token.id)) };
  });
}

export function distinctPairs(ids: readonly number[]): number | null {
  if (ids.length < 2) return null;
  const seen = new Set<number>();
  for (let i = 1; i < ids.length; i++) seen.add(ids[i - 1]! * 2 ** 26 + ids[i]!);
  return seen.size / (ids.length - 1);
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
