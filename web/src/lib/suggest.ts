// Picks the alternative that the page suggests: a likely one that was not chosen.

import type { Alternative, Token } from './types';

export interface Suggestion {
  index: number;
  alternative: Alternative;
}

const LATER = 0.04; // what a token further on is worth less

export function suggest(tokens: readonly Token[]): Suggestion | null {
  let best: Suggestion | null = null;
  let most = -Infinity;
  for (const token of tokens) {
    if (-LATER * token.index <= most) break; // no later one can be better
    for (const each of token.alternatives) {
      const word = /\p{L}{2}/u.test(each.text); // a word makes a more different text than a comma
      const value = (each.raw_logprob ?? -Infinity) + (word ? 0 : -3) - LATER * token.index;
      if (each.id === token.id || each.logprob === null || value <= most) continue;
      most = value;
      best = { index: token.index, alternative: each };
    }
  }
  return best;
}
