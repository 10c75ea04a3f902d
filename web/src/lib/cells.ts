// The visible tokens of the text as plain records, like the chips of the tree.

import { count, percent } from './format';
import { tint, underline } from './heat';
import type { PromptToken, Token } from './types';

export interface Cell {
  readonly key: number; // tokens of the answer count from 0, those of the prompt are negative
  readonly piece: string;
  readonly bytes: string;
  readonly look: string; // CSS classes
  readonly title: string | undefined;
  readonly tint: string;
}

export interface Told {
  end: Token | null; // the token that ended the run
  pin: number | null;
  focus: number | null; // the token that the other panels are about
  shown: number; // how many tokens a playback has reached
  playedBack: boolean;
  moving: boolean; // the run is being generated or played back
  drafts: boolean; // whether accepted drafts are marked
}

/** A token of the prompt, or a piece of a conversation. */
export function promptCell({ piece, bytes, role }: Pick<PromptToken, 'piece' | 'bytes'> & { role?: boolean }, key: number, told: Told): Cell {
  const look = `token given${role ? ' role' : ''}${key === -1 && told.shown === 0 ? ' last' : ''}`;
  return { key, piece, bytes, look, title: undefined, tint: '' };
}

export function tokenCell(token: Token, told: Told): Cell {
  const { index, piece, bytes, source } = token;
  const look = ['token', source];
  if (token === told.end) look.push('end');
  if (source === 'draft' && told.drafts) look.push('guessed');
  if (index === told.pin) look.push('pinned');
  else if (index === told.focus && !told.moving) look.push('focused');
  if (index >= told.shown && (told.playedBack || token !== told.end)) look.push('later');
  if (index === told.shown - 1 && told.moving) look.push('newest');
  return { key: index, piece, bytes, look: look.join(' '), ...surpriseOf(token) };
}

const known = new WeakMap<Token, { title: string; tint: string }>();

function surpriseOf(token: Token): { title: string; tint: string } {
  let told = known.get(token);
  if (!told) {
    const { index, raw_logprob, rank } = token;
    told = { title: `token ${index}: ${percent(raw_logprob)}, rank ${count(rank)}`, tint: `background:${tint(raw_logprob)};--under:${underline(raw_logprob)}px` };
    known.set(token, told);
  }
  return told;
}
