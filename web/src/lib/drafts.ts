// What became of a drafter's guess, in words.

import type { Refusal } from './types';
import { spoken } from './visible';

/** Nothing where nobody had guessed. */
export function guessTold(source: string, refused: Refusal | null, piece: string): string {
  if (!refused) return source === 'draft' ? 'proposed by the drafter, accepted by the model' : '';
  const drafter = refused.by === 'model' ? 'the draft model' : 'the drafter';
  const rest = refused.dropped ? `; ${refused.dropped} more after it were discarded` : '';
  return `${drafter} proposed “${spoken(refused.text)}”, the model chose “${spoken(piece)}”${rest}`;
}
