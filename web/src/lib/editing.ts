// Editing a text: what is asked for, and the record of what was proposed, accepted and refused.

import { api } from './api';
import type { Options } from './types';

export interface Proposal {
  step: number;
  number: number;
  text: string;
  old_text: string;
  own_bits: number;
  following_bits: number;
  old_own_bits: number | null; // null: there was nothing
  old_following_bits: number | null;
  accepted: boolean;
  refusal: string | null; // why it was not even scored
  why: string;
  line: string; // the decision in the engine's words
}

/** A text at one moment, in three parts: what was replaced last, and what is around it. */
export interface Frame {
  proposal: number | null;
  before: string;
  span: string;
  after: string;
}

export interface Edit {
  kind: string;
  before: string;
  text: string;
  usage: { sampled: number; scored: number };
  draft: string | null;
  run: string | null;
  tree: string;
  proposals: Proposal[];
  frames: Frame[];
}

export type EditKind = 'repair' | 'rewrite' | 'infill' | 'sharpen';
export type Proposer = 'left' | 'diffusion'; // draws from left to right, or fills masks that see both sides

/** Returns the body of an edit. A selection is given in the browser's units; the server counts characters. */
export function bodyOf(kind: EditKind, text: string, [start, end]: readonly [number, number], sampling: Options, proposer: Proposer = 'left'): Record<string, unknown> {
  const characters = (place: number): number => Array.from(text.slice(0, place)).length;
  const by = proposer === 'left' ? {} : { proposer };
  switch (kind) {
    case 'repair': return { text, sampling, ...by };
    case 'rewrite': return { text, spans: [[characters(start), characters(end)]], candidates: 8, sampling };
    case 'infill': return { before: text.slice(0, start), after: text.slice(end), tokens: 4, candidates: 8, sampling, ...by };
    case 'sharpen': return { prompt: text, steps: 8, sampling: { max_tokens: 24, ...sampling } };
  }
}

export const edit = (kind: EditKind, body: unknown, signal: AbortSignal): Promise<Edit> => api.send(`/api/edits/${kind}`, body, signal);

/** Returns the proposals that were decided by a frame: those up to the end of the step of its own proposal. */
export function decidedBy({ proposals, frames }: Edit, at: number): Proposal[] {
  if (at >= frames.length - 1) return proposals;
  const { proposal } = frames[at]!;
  return proposal === null ? [] : proposals.filter((each) => each.step <= proposals[proposal]!.step);
}
