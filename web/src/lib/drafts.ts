// Describes what happened to a draft, in words.

import type { Info, Refusal } from './types';
import { spoken } from './visible';

/** Returns the description, or an empty text if nothing was drafted. */
export function guessTold(source: string, refused: Refusal | null, piece: string): string {
  if (!refused) return source === 'draft' ? 'proposed by the drafter, accepted by the model' : '';
  const drafter = { lookup: 'the drafter', model: 'the draft model', masks: 'the model, by masks,' }[refused.by];
  const rest = refused.dropped ? `; ${refused.dropped} more after it were discarded` : '';
  return `${drafter} proposed “${spoken(refused.text)}”, the model chose “${spoken(piece)}”${rest}`;
}

const DRAFTERS: Record<NonNullable<Info['drafter']>, string> = {
  lookup: 'what followed the same tokens before, in this text or in earlier runs',
  drafter: 'a drafter that was trained for this model, or, where that is surer, what followed the same tokens before',
  model: 'a smaller model with the same vocabulary, drawing with the run’s own luck',
};

/** Describes what makes the drafts of this server; null where it makes none, or where that is not known. */
export const drafterTold = (drafter: Info['drafter']): string | null => (drafter ? DRAFTERS[drafter] : null);
