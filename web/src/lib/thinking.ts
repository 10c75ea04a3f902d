// Thinking longer: a search over several paths, asked for over the chat protocol and told as it goes.

import { api, ask } from './api';
import { parse, stringify } from './json';
import type { Message, Options } from './types';

export interface SearchPath {
  number: number;
  run: string;
  parent: number | null;
  fork_at: number | null;
  tokens: number;
  value: string | null;
  confidence: number | null; // that of its least confident group of tokens
  vote: number | null;
  ended_by: string;
  why: string;
}

export interface Decision {
  round: number;
  action: 'start' | 'fork' | 'end' | 'verdict' | 'stop' | 'cut' | 'note' | 'answer';
  path: number | null;
  tokens: number | null;
  why: string;
}

/** The record of a search, as docs/thinking.md describes it. */
export interface SearchRecord {
  method: string;
  options: Options;
  seed: number | bigint;
  rounds: number;
  answer: number | null; // the path that won
  value: string | null;
  votes: Record<string, number>;
  usage: { tokens: number; seconds: number; branches: number; prompt_tokens: number };
  paths: SearchPath[];
  decisions: Decision[];
}

export interface Confidences {
  window: number;
  threshold: number | null;
  paths: { number: number; run: string; tokens: number[]; groups: number[] }[];
}

/** What a stream tells of a search while it runs. */
export interface Progress {
  running: number;
  branches: number;
  tokens: number;
  seconds: number;
  values: string[];
}

export interface SearchAsked {
  method: string;
  n: number;
  extract: string;
  options?: Options;
}

export const METHODS = [
  { name: 'vote', about: 'The answer that most paths have.' },
  { name: 'confidence', about: 'A vote weighted by confidence; unsure paths are stopped while they are written.' },
  { name: 'likelihood', about: 'The path that the model itself finds most likely.' },
  { name: 'beam', about: 'After each line, the best paths go on as several.' },
  { name: 'budget', about: 'A path that ends is told to think again.' },
] as const;
export const EXTRACTORS = ['auto', 'number', 'choice', 'last_line', 'text', 'json'] as const;

/** Searches for an answer. Calls `tell` with each report, and returns the id of a run of the search. */
export async function think(messages: Message[], search: SearchAsked, sampling: Options, tell: (progress: Progress) => void, signal: AbortSignal): Promise<string> {
  const body = stringify({ messages, stream: true, ...sampling, search });
  const answer = await ask('/v1/chat/completions', { method: 'POST', headers: { 'content-type': 'application/json' }, body, signal });
  let found = '';
  for await (const data of blocks(answer.body!)) {
    if (data === '[DONE]') break;
    const told = parse(data) as { search?: Progress & { id?: string }; error?: { message: string } };
    if (told.error) throw new Error(told.error.message);
    if (told.search?.id !== undefined) found = told.search.id;
    else if (told.search) tell(told.search);
  }
  if (found === '') throw new Error('The search ended without an answer.');
  return found;
}

/** Yields the data of each server-sent event of a body. */
export async function* blocks(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split('\n\n');
    rest = parts.pop()!;
    for (const part of parts) {
      const lines = part.split('\n').filter((line) => line.startsWith('data: '));
      if (lines.length) yield lines.map((line) => line.slice(6)).join('\n');
    }
  }
}

export const searchOf = (run: string, signal?: AbortSignal): Promise<{ search: SearchRecord | null }> => api.read(`/api/runs/${encodeURIComponent(run)}/search`, signal);
export const confidencesOf = (run: string, signal?: AbortSignal): Promise<Confidences> => api.read(`/api/runs/${encodeURIComponent(run)}/search/confidence?points=120`, signal);

export type Fate = 'answer' | 'voted' | 'silent' | 'cut';

/** What became of a path: it is the answer, it voted, it ended without a vote, or it was stopped. */
export function fateOf(path: SearchPath, record: SearchRecord): Fate {
  if (path.number === record.answer) return 'answer';
  if (['search', 'budget', 'cancelled'].includes(path.ended_by)) return 'cut';
  return path.vote === null ? 'silent' : 'voted';
}

/** Why a path ended, in words: the engine's own reason where it gave one. */
export function endedBy(path: SearchPath): string {
  const words: Record<string, string> = { stop: 'the model ended it', length: 'token limit', search: 'stopped', budget: 'the budget was spent', cancelled: 'cancelled', repetition: 'it repeated itself', timeout: 'time limit' };
  const told = words[path.ended_by] ?? path.ended_by;
  return path.ended_by === 'search' && path.why ? `${told}: ${path.why}` : told;
}
