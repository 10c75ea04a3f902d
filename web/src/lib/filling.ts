// A text that is filled in passes: what is shown of it after each of them, and the options of filling.

import { count, decimal, percent, share } from './format';
import type { Cell, Frame, Options } from './types';
import { spoken } from './visible';

/** The options that the lens has fields for, with what they do. */
export const FIELDS = [
  { name: 'block', about: 'How many places are masked at once; blocks are written from left to right' },
  { name: 'passes', about: 'The most passes for a block: each fills at least its share. Empty: as many as there are places' },
  { name: 'threshold', about: 'A pass fills every place where some token has at least this probability, and one place at least' },
  { name: 'revise', about: 'How often the least confident tokens of a full block are taken back and filled anew' },
] as const;
export type FieldName = (typeof FIELDS)[number]['name'];

/** Returns the options of the fields. What is no number is sent as it is: the server says what is wrong with it. */
export function optionsOf(fields: Readonly<Record<FieldName, string>>): Options {
  const given = FIELDS.map(({ name }) => [name, fields[name].trim()] as const).filter(([, text]) => text !== '');
  return Object.fromEntries(given.map(([name, text]) => [name, Number.isFinite(Number(text)) ? Number(text) : text]));
}

/** A place of the answer with its cell. */
export interface Spot {
  place: number;
  cell: Cell;
  isFinal: boolean; // its block is full, and no pass can change it any more
}

/** Returns the answer after a pass: the blocks before its own as their last passes left them, and its own block. */
export function spotsAt(frames: readonly Frame[], at: number): Spot[] {
  const frame = frames[at];
  if (!frame) return [];
  const blocks = [frame];
  for (let i = at - 1; i >= 0; i--) if (frames[i]!.first < blocks[0]!.first) blocks.unshift(frames[i]!);
  return blocks.flatMap((each) => each.cells.map((cell, i) => ({ place: each.first + i, cell: each === frame ? cell : { ...cell, changed: false, taken_back: null, reason: null }, isFinal: each !== frame })));
}

/** Returns what a pass did: the places that it filled and those that were taken back before it. */
export const changesOf = (frame: Frame): Spot[] => frame.cells.map((cell, i) => ({ place: frame.first + i, cell, isFinal: false })).filter(({ cell }) => cell.changed);

export const filledBy = (frame: Frame): number => frame.cells.filter(({ changed, text }) => changed && text !== null).length;
export const takenBefore = (frame: Frame): number => frame.cells.filter(({ taken_back }) => taken_back !== null).length;

/** Returns the pass that explains a spot: the one that filled it, or the one that is shown, where it stayed masked. */
export const explainedBy = ({ cell }: Spot, shown: number): number => cell.pass ?? shown;

/** Returns a spot in words. */
export function spotTold({ place, cell }: Spot): string {
  const taken = cell.taken_back === null ? '' : `; “${spoken(cell.taken_back)}” was taken back (${spoken(cell.reason ?? '')})`;
  if (cell.text === null) return `place ${place}: masked${taken}`;
  const old = cell.taken_back === null ? '' : `“${spoken(cell.taken_back)}” → `; // in the order in which they are seen
  return `place ${place}: ${old}“${spoken(cell.text)}”, filled in pass ${cell.pass}, confidence ${share(cell.confidence ?? NaN)}, its own probability ${percent(cell.raw_logprob)}, entropy ${decimal(cell.entropy)} nats${taken}`;
}

/** Returns a pass in words: what it filled and what was taken back before it. */
export function passTold(frame: Frame): string {
  const taken = takenBefore(frame);
  return `filled ${count(filledBy(frame))}${taken ? `, ${count(taken)} taken back before it` : ''}`;
}
