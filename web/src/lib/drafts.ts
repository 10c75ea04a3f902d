// Describes what happened to a draft, in words.

import type { Refusal } from './types';
import { spoken } from './visible';

/** Returns the description, or an empty text if nothing was drafted. */
export function guessTold(source: string, refused: Refusal | null, piece: string): string {
  if (!refused) return source === 'draft' ? 'proposed by the drafter, accepted by the model' : '';
  const drafter = refused.by === 'model' ? 'the draft model' : 'the drafter';
  const rest = refused.dropped ? `; ${refused.dropped} more after it were discarded` : '';
  return `${drafter} proposed “${spoken(refused.text)}”, the model chose “${spoken(piece)}”${rest}`;
}
