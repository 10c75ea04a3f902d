import { afterEach, describe, expect, it, vi } from 'vitest';
import { ApiError, query } from '../src/lib/api';
import { EventParser, follow } from '../src/lib/events';
import type { TreeEvent } from '../src/lib/types';
import { events, eventText } from './recorded';

describe('the parser of events', () => {
  it('gives the same events however the stream is cut', () => {
    const whole = new EventParser().feed(eventText);
    for (const size of [1, 7, 100, 4096]) {
      const parser = new EventParser();
      const made = [];
      for (let at = 0; at < eventText.length; at += size) made.push(...parser.feed(eventText.slice(at, at + size)));
      expect(made).toEqual(whole);
    }
    expect(whole.length).toBeGreaterThan(20);
  });
  it('passes over comments and keeps lines of data apart', () => {
    expect(new EventParser().feed(': still here\n\nevent: x\ndata: 1\ndata: 2\n\n')).toEqual([{ event: 'x', data: '1\n2' }]);
  });
});

describe('following a tree', () => {
  afterEach(() => vi.unstubAllGlobals());
  const stream = (...texts: string[]): Response => new Response(texts.join(''), { status: 200 });
  const blocks = eventText.split(/(?<=\n\n)/);

  it('goes on after a broken connection with what it has not seen', async () => {
    const asked: string[] = [];
    const answers = [stream(...blocks.slice(0, 5)), new TypeError('broken'), stream(...blocks.slice(5)), new Response('{"error":{"message":"gone","code":"no_such_tree","param":null}}', { status: 404 })];
    vi.stubGlobal('fetch', (path: string) => {
      asked.push(path);
      const next = answers.shift()!;
      return next instanceof Error ? Promise.reject(next) : Promise.resolve(next);
    });
    const seen: TreeEvent[] = [];
    const lost = await new Promise<ApiError>((resolve) => {
      follow('t', { event: (event) => seen.push(event), open: () => {}, away: () => {}, lost: resolve }, [1]);
    });
    expect(seen).toEqual(events());
    expect(asked.map((path) => Number(/after=(\d+)/.exec(path)![1]))).toEqual([999_999_999, 5, 5, events().length]);
    expect(lost.expired).toBe(true);
    expect(lost.message).toBe('Gone.');
  });
  it('says that it is away, and not that the run is lost, while the server starts', async () => {
    vi.stubGlobal('fetch', () => Promise.resolve(new Response('{"error":{"message":"the server is shutting down","code":"shutting_down","param":null}}', { status: 503 })));
    const away = vi.fn();
    const stop = follow('t', { event: () => {}, open: () => {}, away, lost: () => expect.unreachable() }, [1]);
    await vi.waitFor(() => expect(away.mock.calls.length).toBeGreaterThan(2));
    stop();
  });
});

it('asks a what-if in the query, texts as they are and all else as JSON', () => {
  expect(query({ temperature: 0.3, stop: ['a&b'], regex: 'x+' }, 'new')).toBe('?temperature=0.3&stop=%5B%22a%26b%22%5D&regex=x%2B&luck=new');
  expect(query({}, 'same')).toBe('');
});
