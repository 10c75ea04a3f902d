// Compares runs of one prompt: the first token that differs from the first run, and the
// log-probability per token. Every other number is the engine's.

import type { Forest, Run } from './forest';
import { spoken } from './visible';

export interface Row {
  run: Run;
  parts: number | null; // the first token, from 0, that differs from the first run; null if none does
}

export function compareRuns(forest: Forest, runs: readonly Run[]): Row[] {
  const first = runs[0];
  return runs.map((run) => {
    const shared = first ? forest.shared(first, run) : 0;
    const alike = run === first || (shared === run.tokens.length && shared === first?.tokens.length);
    return { run, parts: alike ? null : shared };
  });
}

/** Returns the log-probability of a run's text per token, so that texts of different lengths can be compared; null if
 *  it is not known. */
export const perToken = (run: Run): number | null => (run.summary.logprob === null || !run.tokens.length ? null : run.summary.logprob / run.tokens.length);

/** Returns the seconds that each token of a run took, without those that it shares with its parent. */
export const pauses = (run: Run): number[] => run.tokens.slice(run.summary.fork_at ?? 0).map((token) => token.took);

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
