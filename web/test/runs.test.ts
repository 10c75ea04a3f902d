import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { Address, moveTo } from '../src/lib/address';
import { api } from '../src/lib/api';
import { asksSame, hasLuck, seeds } from '../src/lib/asking';
import { LIMITS, messagesOf, partsOf, piecesOf, plain, sameMessages } from '../src/lib/chat';
import { fromHash, toHash } from '../src/lib/link';
import { groups, isRemovable, merged, state, when } from '../src/lib/runs';
import { TOUR } from '../src/lib/tour';
import type { Message, Summary } from '../src/lib/types';
import { info, run } from './recorded';

const summary = (change: Partial<Summary> = {}): Summary => ({ ...run(), messages: null, title: '', ...change });
const said = (...contents: string[]): Message[] => contents.map((content, place) => ({ role: place % 2 ? 'assistant' : 'user', content }));

describe('the address', () => {
  const recipe = { prompt: 'Hi', sampling: {}, turns: [] };
  it('gets a new entry for another run and none for another token', () => {
    expect(moveTo('#run=aa', 'bb', 2)).toEqual({ hash: '#run=bb&at=2', replace: false });
    expect(moveTo('#run=aa&at=1', 'aa', 2)).toEqual({ hash: '#run=aa&at=2', replace: true });
    expect(moveTo('#run=aa&at=1', 'aa', null)).toEqual({ hash: '#run=aa', replace: true });
    expect(moveTo('#run=aa&at=1', 'aa', 1)).toBeNull();
  });
  it('of a page that names no run yet is replaced, so that Back leaves the page', () => {
    expect(moveTo('', 'aa', null)).toEqual({ hash: '#run=aa', replace: true });
    expect(moveTo(toHash({ run: null, at: 3, recipe }), 'aa', 3)).toEqual({ hash: '#run=aa&at=3', replace: true });
  });
  it('keeps how to make the run again while the run stays', () => {
    const move = moveTo(toHash({ run: 'aa', at: null, recipe }), 'aa', 4)!;
    expect(fromHash(move.hash)).toEqual({ run: 'aa', at: 4, recipe });
  });

  it('may name a run by the id of an answer', () => {
    for (const prefix of ['', 'chatcmpl-', 'cmpl-', 'resp_', 'msg_']) expect(fromHash(`#run=${prefix}d3c160096f7b279e&at=2`)).toEqual({ run: 'd3c160096f7b279e', at: 2, recipe: null });
    expect(fromHash('#run=resp_other').run).toBe('resp_other');
    expect(moveTo('#run=chatcmpl-aa', 'aa', null)).toBeNull();
  });

  describe('as it changes', () => {
    const page = { location: { hash: '' }, history: { pushState: vi.fn(), replaceState: vi.fn() } };
    beforeEach(() => {
      vi.useFakeTimers();
      page.location.hash = '';
      for (const mock of Object.values(page.history)) mock.mockReset().mockImplementation((_: unknown, __: string, hash: string) => void (page.location.hash = hash));
    });
    afterEach(() => void vi.useRealTimers());

    it('names a run at once, and a token when it stays for a moment', () => {
      const address = new Address(page);
      address.name('aa', null);
      address.name('bb', null);
      expect([page.history.replaceState.mock.calls.length, page.history.pushState.mock.calls.length]).toEqual([1, 1]);
      for (let at = 0; at < 50; at++) address.name('bb', at);
      vi.runAllTimers();
      expect(page.history.replaceState).toHaveBeenCalledTimes(2);
      expect(page.location.hash).toBe('#run=bb&at=49');
    });
    it('stays where Back has led while a token was about to be named', () => {
      const address = new Address(page);
      address.name('aa', null);
      address.name('bb', null);
      address.name('bb', 1);
      page.location.hash = '#run=aa';
      address.settle();
      vi.runAllTimers();
      expect(page.location.hash).toBe('#run=aa');
    });
    it('leaves no entry of a run that is replaced by another', () => {
      page.location.hash = '#run=aa';
      new Address(page).name('bb', null, true);
      expect(page.history.pushState).not.toHaveBeenCalled();
      expect(page.location.hash).toBe('#run=bb');
    });
  });
});

describe('a question', () => {
  it('is the same if the text or all messages are', () => {
    expect(asksSame({ prompt: 'Hi' }, 'Hi', null)).toBe(true);
    expect(asksSame({ prompt: 'Hi' }, 'Hi ', null)).toBe(false);
    expect(asksSame({ prompt: 'Hi' }, 'Hi', said('Hi'))).toBe(false);
    expect(asksSame({ messages: said('Hi') }, '<|im_start|>user', said('Hi'))).toBe(true);
    expect(asksSame({ messages: said('Hi', 'Hello', 'Bye') }, '', said('Hi'))).toBe(false);
    expect(asksSame({ messages: said('Hi') }, 'Hi', null)).toBe(false);
  });
  it('is run with seeds 1 to n, each named, with all other options', () => {
    expect(seeds(3, { temperature: 0.8, seed: 99, n: 4 })).toEqual({
      sampling: { temperature: 0.8 },
      strategies: [1, 2, 3].map((seed) => ({ name: `seed ${seed}`, sampling: { seed } })),
    });
  });
  it('has other answers with other seeds only where luck decides', () => {
    expect([{}, { temperature: 0.5 }, { temperature: 0 }, { beam_width: 4 }, { beam_width: 1 }].map((sampling) => hasLuck(sampling, info().options))).toEqual([true, true, false, false, true]);
    const greedy = info().options.map((each) => (each.name === 'temperature' ? { ...each, default: 0 } : each));
    expect([{}, { temperature: 0.5 }].map((sampling) => hasLuck(sampling, greedy))).toEqual([false, true]);
  });
});

describe('a conversation', () => {
  const system: Message = { role: 'system', content: 'Be brief' };
  it('is taken apart and put together without a change', () => {
    const messages = [system, ...said('Hi', 'Hello', 'Bye')];
    const { system: first, turns } = partsOf(messages);
    expect([first, turns.map((each) => each.role)]).toEqual(['Be brief', ['user', 'assistant', 'user']]);
    expect(messagesOf(first, turns, 'an answer', '  ')).toEqual(messages);
    expect(partsOf(said('Hi'))).toEqual({ system: '', turns: said('Hi') });
  });
  it('has texts, however its messages were sent', () => {
    const sent = [{ role: 'user', content: [{ type: 'text', text: 'Hi ' }, { type: 'text', text: 'you' }] }, { role: 'assistant', content: null }, { role: 'tool' }];
    expect(plain(sent).map((each) => each.content)).toEqual(['Hi you', '', '']);
    expect(plain(sent)).toBe(plain(sent));
  });
  it('is asked again where the box is empty, and continued where it is not', () => {
    expect(messagesOf('', said('Hi'), 'Hello', '')).toEqual(said('Hi'));
    expect(messagesOf('', said('Hi'), 'Hello', 'Bye')).toEqual(said('Hi', 'Hello', 'Bye'));
    expect(sameMessages(said('Hi'), said('Hi', 'Hello'))).toBe(false);
  });
  it('is shown by message and without the template', () => {
    const pieces = piecesOf([system, ...said('How are\nyou?')]);
    expect(pieces.map((each) => each.piece)).toEqual(['system', 'Be', ' brief', 'user', 'How', ' are', '\n', 'you?', 'assistant']);
    expect(pieces.filter((each) => each.role).map((each) => each.piece)).toEqual(['system', 'user', 'assistant']);
    expect(pieces.filter((each) => each.ends).map((each) => each.piece)).toEqual([' brief', '\n', 'you?']);
  });
  it('loses no character, however long its words are', () => {
    for (const content of ['', ' ', '\n\n', 'a  b\t\n c ', '🎈'.repeat(60), 'x'.repeat(99)]) expect(piecesOf(said(content)).slice(1, -1).map((each) => each.piece).join('')).toBe(content);
  });
  it('has the terminal’s limit for an answer, in the tour as well', () => {
    expect(LIMITS.chat).toBe(1024);
    for (const step of TOUR) if (step.start?.messages) expect(step.start.sampling?.['max_tokens']).toBe(LIMITS.chat);
  });
});

describe('the list of runs', () => {
  const NOW = new Date(2026, 10, 16, 12, 0).getTime() / 1000;
  it('has the runs of a tree together, the newest tree first', () => {
    const runs = [summary({ id: 'd', tree: 'two' }), summary({ id: 'c', tree: 'one' }), summary({ id: 'b', tree: 'two', messages: said('Hi') }), summary({ id: 'a', tree: 'one' })];
    expect(groups(runs).map((group) => [group.tree, group.runs.map((each) => each.id)])).toEqual([['two', ['d', 'b']], ['one', ['c', 'a']]]);
  });
  it('puts pages together: each run once, as the first page has it', () => {
    const [old, live, ended] = [summary({ id: 'a' }), summary({ id: 'b', status: 'running' }), summary({ id: 'b', status: 'done' })];
    expect(merged([live], [old])).toEqual([live, old]);
    expect(merged([ended], [live, old])).toEqual([ended, old]);
  });
  it('says when a run was started', () => {
    expect([30, 60 * 5 + 1, 3600 * 3].map((ago) => when(NOW - ago, NOW))).toEqual(['just now', '5 min ago', 'today, 09:00']);
    expect(when(NOW - 86400 * 2, NOW)).toBe('14 Nov, 12:00');
    expect(when(NOW - 86400 * 365, NOW)).toBe('16 Nov 2025, 12:00');
  });
  it('says how a run ended', () => {
    const told = (change: Partial<Summary>): string => state(summary({ status: 'done', stop_reason: null, ...change }));
    expect(told({ finish_reason: 'stop' })).toBe('ended');
    expect(told({ finish_reason: 'length' })).toBe('token limit');
    expect(told({ finish_reason: 'length', stop_reason: 'context' })).toBe('context full');
    expect(told({ finish_reason: 'cancelled' })).toBe('stopped');
    expect([told({ status: 'running' }), told({ status: 'waiting' }), told({ status: 'paused' }), told({ status: 'failed' }), told({ status: 'elsewhere' })]).toEqual(['writing …', 'waiting …', 'paused', 'failed', 'on another server …']);
    expect((['waiting', 'running', 'paused', 'done', 'failed', 'elsewhere'] as const).filter((status) => isRemovable(summary({ status })))).toEqual(['paused', 'done', 'failed']);
  });
});

describe('the server is asked', () => {
  afterEach(() => void vi.unstubAllGlobals());
  it('for runs with a text, older than one, page by page', async () => {
    const asked: string[] = [];
    vi.stubGlobal('fetch', (path: string) => (asked.push(path), Promise.resolve(Response.json({ runs: [] }))));
    await api.runs({ limit: 50, search: ' ' });
    await api.runs({ search: ' two words&more ', before: 'aa', limit: 9 });
    expect(asked).toEqual(['/api/runs?limit=50', '/api/runs?limit=9&search=two+words%26more&before=aa']);
  });
  it('for a run that a file has, also if it is there already', async () => {
    const here = run();
    vi.stubGlobal('fetch', (path: string) =>
      Promise.resolve(path === '/api/runs/import' ? Response.json({ error: { message: `run ${here.id} is here already`, code: 'exists', param: null } }, { status: 409 }) : Response.json(path.startsWith(`/api/runs/${here.id}?`) ? here : {})),
    );
    expect((await api.import(new Blob()))[0]!.id).toBe(here.id);
  });
});
