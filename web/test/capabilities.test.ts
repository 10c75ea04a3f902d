import { describe, expect, it } from 'vitest';
import { bodyOf, decidedBy, type Edit } from '../src/lib/editing';
import { blocks, endedBy, fateOf, type SearchPath, type SearchRecord } from '../src/lib/thinking';

const path = (more: Partial<SearchPath>): SearchPath => ({ number: 1, run: 'r', parent: null, fork_at: null, tokens: 9, value: '4', confidence: 5, vote: 5, ended_by: 'stop', why: '', ...more });

describe('a search', () => {
  it('has paths that won, voted, were silent or were stopped', () => {
    const record = { answer: 0 } as SearchRecord;
    expect(fateOf(path({ number: 0 }), record)).toBe('answer');
    expect(fateOf(path({}), record)).toBe('voted');
    expect(fateOf(path({ vote: null }), record)).toBe('silent');
    for (const ended_by of ['search', 'budget', 'cancelled']) expect(fateOf(path({ ended_by }), record)).toBe('cut');
    expect(endedBy(path({ ended_by: 'search', why: 'confidence 1 is below 2' }))).toBe('stopped: confidence 1 is below 2');
    expect(endedBy(path({ ended_by: 'something new' }))).toBe('something new');
  });
  it('is read from a stream, however it is cut', async () => {
    const text = ': still here\n\ndata: {"a": "ä"}\n\ndata: 1\ndata: 2\n\ndata: [DONE]\n\n';
    const bytes = new TextEncoder().encode(text);
    for (const size of [1, 3, 1000]) {
      const body = new ReadableStream<Uint8Array<ArrayBuffer>>({
        start: (line) => {
          for (let at = 0; at < bytes.length; at += size) line.enqueue(bytes.slice(at, at + size));
          line.close();
        },
      });
      const read: string[] = [];
      for await (const each of blocks(body)) read.push(each);
      expect(read).toEqual(['{"a": "ä"}', '1\n2', '[DONE]']);
    }
  });
});

describe('an edit', () => {
  it('counts characters as the server does, not UTF-16 units', () => {
    const text = 'a😀b London';
    expect(bodyOf('rewrite', text, [5, 11], {})).toMatchObject({ text, spans: [[4, 10]] });
    expect(bodyOf('infill', text, [4, 5], { seed: 1 })).toMatchObject({ before: 'a😀b', after: 'London', sampling: { seed: 1 } });
    expect(bodyOf('repair', text, [0, 0], {})).toEqual({ text, sampling: {} });
    expect(bodyOf('sharpen', text, [0, 0], { max_tokens: 3 })).toMatchObject({ prompt: text, sampling: { max_tokens: 3 } });
  });
  it('tells the proposals that were decided by a moment', () => {
    const proposals = [0, 0, 3, 3, 5].map((step, i) => ({ step, number: i, accepted: i === 1 || i === 2 }));
    const frames = [null, 1, 2].map((proposal) => ({ proposal, before: '', span: '', after: '' }));
    const edit = { proposals, frames } as unknown as Edit;
    expect([0, 1, 2].map((at) => decidedBy(edit, at).length)).toEqual([0, 2, 5]);
  });
});
