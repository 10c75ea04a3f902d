// A conversation as messages: composed from what is on the page, taken apart again for a run that is opened, and cut
// into pieces for the text panel.

import type { Message, RecordedMessage } from './types';
import { hex } from './visible';

/** The most tokens of an answer, unless the user says otherwise. For chat as in the terminal. */
export const LIMITS = { text: 60, chat: 1024 } as const;

/** Returns what is sent: the system message, the turns so far, the answer that is shown, and the new message.
 *  Without a new message, the last one is asked again. */
export function messagesOf(system: string, turns: readonly Message[], answer: string | null, prompt: string): Message[] {
  const first: Message[] = system.trim() ? [{ role: 'system', content: system }] : [];
  const open = turns.at(-1)?.role === 'user';
  if (open && prompt.trim() === '') return [...first, ...turns];
  const last: Message[] = open && answer !== null ? [{ role: 'assistant', content: answer }] : [];
  return [...first, ...turns, ...last, { role: 'user', content: prompt }];
}

const known = new WeakMap<readonly RecordedMessage[], Message[]>();

/** Returns the messages of a conversation with plain texts; for the same array, the same result. */
export function plain(messages: readonly RecordedMessage[]): Message[] {
  let made = known.get(messages);
  if (!made) {
    made = messages.map(({ role, content }) => ({ role, content: Array.isArray(content) ? content.map((part) => part.text).join('') : (content ?? '') }));
    known.set(messages, made);
  }
  return made;
}

/** Returns the system message and the turns of a conversation. */
export function partsOf(messages: readonly Message[]): { system: string; turns: Message[] } {
  const [first, ...rest] = messages;
  return first?.role === 'system' ? { system: first.content, turns: rest } : { system: '', turns: [...messages] };
}

export function sameMessages(one: readonly Message[], other: readonly Message[]): boolean {
  return one.length === other.length && one.every((each, place) => each.role === other[place]!.role && each.content === other[place]!.content);
}

/** A part of a conversation in the text panel: the name of a role, or about a word. */
export interface Piece {
  piece: string;
  bytes: string;
  role: boolean;
  ends: boolean; // the next piece begins a new line
}

const WORDS = /\n|[^\S\n]?\S{1,24}|[^\S\n]/gu;

/** Returns a conversation in pieces: each message begins a new line, and the last piece begins the answer's line. */
export function piecesOf(messages: readonly Message[]): Piece[] {
  const made: Piece[] = [];
  const add = (piece: string, role: boolean): number => made.push({ piece, bytes: hex(piece), role, ends: piece === '\n' });
  for (const { role, content } of messages) {
    add(role, true);
    for (const [word] of content.matchAll(WORDS)) add(word, false);
    made.at(-1)!.ends = true;
  }
  add('assistant', true);
  return made;
}
