import { afterEach, describe, expect, it, vi } from 'vitest';
import { messagesOf } from '../src/lib/chat';
import { Feed, type Listener } from '../src/lib/feed';
import { events, eventText, fork, run } from './recorded';

afterEach(() => vi.unstubAllGlobals());

/** A server with a run and its fork. What it sends as events is what was recorded; the stream stays open. */
function serve(text: string, told = [fork(), run()]): string[] {
  const asked: string[] = [];
  vi.stubGlobal('fetch', (path: string) => {
    asked.push(path);
    if (path.includes('/events')) return Promise.resolve(new Response(new ReadableStream({ start: (stream) => stream.enqueue(new TextEncoder().encode(text)) })));
    if (path.startsWith('/api/runs?')) return Promise.resolve(Response.json({ runs: told }));
    return Promise.resolve(Response.json(told.find((each) => path.startsWith(`/api/runs/${each.id}?`))));
  });
  return asked;
}
const silent = (): Listener => ({ came: vi.fn(), connected: vi.fn(), away: vi.fn(), lost: vi.fn(), failed: vi.fn() });

describe('the feed', () => {
  it('connects before it asks what is there, and has it all then', async () => {
    const asked = serve('');
    const feed = new Feed(silent(), (work) => work());
    await feed.open(run().tree);
    expect(asked[0]).toContain('/events');
    expect([...feed.forest.runs.keys()]).toEqual([run().id, fork().id]);
    expect(feed.forest.runs.get(fork().id)!.tokens).toHaveLength(fork().tokens.length);
  });
  it('tells of all that came in a frame at once', async () => {
    serve(eventText);
    const listener = silent();
    const frames: (() => void)[] = [];
    const feed = new Feed(listener, (work) => frames.push(work));
    await feed.open(run().tree);
    await vi.waitFor(() => expect(frames).toHaveLength(1));
    expect(listener.came).not.toHaveBeenCalled();
    frames[0]!();
    expect(listener.came).toHaveBeenCalledExactlyOnceWith(events());
  });
  it('fetches a run of which it has missed the beginning', async () => {
    const late = events().find((event) => event.kind === 'token' && event.token.index === 4)!;
    const block = eventText.split('\n\n').find((each) => each.startsWith(`id: ${late.seq}\n`))!;
    const asked = serve(`${block}\n\n`, []);
    const feed = new Feed(silent(), (work) => work());
    await feed.open(run().tree);
    await vi.waitFor(() => expect(asked.at(-1)).toBe(`/api/runs/${late.run}?alternatives=20`));
  });
  it('asks for a run once at a time, however many of its events come meanwhile', async () => {
    serve('', []);
    const feed = new Feed(silent(), (work) => work());
    await feed.open(run().tree);
    const answers: ((answer: Response) => void)[] = [];
    vi.stubGlobal('fetch', () => new Promise<Response>((answer) => answers.push(answer)));
    for (let times = 0; times < 5; times++) void feed.details(run().id);
    expect(answers).toHaveLength(1);
    answers[0]!(Response.json(run()));
    await vi.waitFor(() => expect(answers).toHaveLength(2)); // once more for all that came meanwhile
    answers[1]!(Response.json(run()));
    await vi.waitFor(() => expect(feed.forest.runs.get(run().id)!.tokens).toHaveLength(run().tokens.length));
    expect(answers).toHaveLength(2);
  });
  it('asks for what a fork does not share with its parent, and has it all', async () => {
    const asked = serve('');
    const feed = new Feed(silent(), (work) => work());
    await feed.open(run().tree);
    expect(asked).toContain(`/api/runs/${fork().id}?alternatives=20&from=${fork().fork_at}`);
    const parent = feed.forest.runs.get(run().id)!.tokens;
    const { tokens } = feed.forest.whole({ ...fork(), id: 'other', tokens: fork().tokens.slice(fork().fork_at!) });
    expect(tokens.map((token) => token.node)).toEqual(fork().tokens.map((token) => token.node));
    expect(tokens[0]).toBe(parent[0]);
  });
});

it('a conversation goes on from the answer that is looked at', () => {
  const turns = [{ role: 'user' as const, content: 'Hi' }];
  expect(messagesOf(' ', turns, 'Hello', 'Bye').map((each) => each.role)).toEqual(['user', 'assistant', 'user']);
  expect(messagesOf('Be brief', [], 'Hello', 'Hi').map((each) => each.role)).toEqual(['system', 'user']);
});
