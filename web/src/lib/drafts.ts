// What became of a drafter's guess, in words.

import type { Refusal } from './types';
import { spoken } from './visible';

/** Nothing where nobody had guessed. */
export function guessTold(source: string, refused: Refusal | null, piece: string): string {
  if (!refused) return source === 'draft' ? 'guessed by the drafter, confirmed by the model' : '';
  const who = refused.by === 'model' ? 'the draft model' : 'the drafter';
  const rest = refused.dropped ? `; ${refused.dropped} more after it went unjudged` : '';
  return `${who} proposed “${spoken(refused.text)}”, the model chose “${spoken(piece)}”${rest}`;
}
