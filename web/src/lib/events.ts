// Server-sent events, read by hand from a fetch: unlike EventSource it tells "the server is away" from "this
// tree is forgotten", and it goes on after the last event that was seen.

import { ApiError, ask } from './api';
import { parse } from './json';
import type { Frame, Summary, Token, TreeEvent } from './types';

export interface RawEvent {
  event: string;
  data: string;
}

/** Cuts a stream of text into events. Feed it pieces of any length. */
export class EventParser {
  private rest = '';

  feed(text: string): RawEvent[] {
    this.rest += text;
    const made: RawEvent[] = [];
    for (;;) {
      const end = /\r?\n\r?\n/.exec(this.rest);
      if (!end) return made;
      const block = this.rest.slice(0, end.index);
      this.rest = this.rest.slice(end.index + end[0].length);
      const event = parseBlock(block);
      if (event) made.push(event);
    }
  }
}

function parseBlock(block: string): RawEvent | null {
  let event = 'message';
  const data: string[] = [];
  for (const line of block.split(/\r?\n/)) {
    if (line.startsWith(':')) continue; // a comment: the connection is alive
    const [, name, value] = /^([^:]*):? ?(.*)$/s.exec(line) ?? [];
    if (name === 'event') event = value ?? '';
    if (name === 'data') data.push(value ?? '');
  }
  return data.length ? { event, data: data.join('\n') } : null;
}

export function toTreeEvent(raw: RawEvent): TreeEvent | null {
  const told = parse(raw.data) as { seq: number; run: string; summary: Summary; frame: Frame } & Token;
  if (raw.event === 'run' || raw.event === 'end') return { kind: raw.event, seq: told.seq, run: told.run, summary: told.summary };
  if (raw.event === 'pass') return { kind: 'pass', seq: told.seq, run: told.run, frame: told.frame };
  return raw.event === 'token' ? { kind: 'token', seq: told.seq, run: told.run, token: told } : null;
}

export interface Follower {
  event: (event: TreeEvent) => void;
  /** The connection is made. `missed` when events may have passed before it was. */
  open: (missed: boolean) => void;
  /** It broke; the next try is in so many milliseconds. */
  away: (wait: number) => void;
  /** The server does not know this tree any more, or refuses it for good. */
  lost: (error: ApiError) => void;
}

const NOW = 999_999_999; // after all events there are: only what is new
const WAITS = [250, 500, 1000, 2000, 4000];

/** Follow a tree from now on, over broken connections, until the returned function is called. */
export function follow(tree: string, follower: Follower, wait = WAITS): () => void {
  const stop = new AbortController();
  void loop(tree, follower, stop.signal, wait);
  return () => stop.abort();
}

async function loop(tree: string, follower: Follower, signal: AbortSignal, waits: readonly number[]): Promise<void> {
  let seen: number | null = null;
  for (let tries = 0; !signal.aborted; tries++) {
    try {
      const after: number = seen ?? NOW;
      const answer = await ask(`/api/trees/${encodeURIComponent(tree)}/events?after=${after}`, { signal });
      follower.open(seen === null);
      tries = 0;
      const parser = new EventParser();
      const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done || signal.aborted) break;
        for (const raw of parser.feed(value)) {
          const event = toTreeEvent(raw);
          if (!event) continue;
          seen = event.seq;
          follower.event(event);
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && !error.gone && error.status !== 503) return follower.lost(error);
    }
    if (signal.aborted) return;
    const wait = waits[Math.min(tries, waits.length - 1)]!;
    follower.away(wait);
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}
