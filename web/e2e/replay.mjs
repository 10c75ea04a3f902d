// A stream of the real engine, recorded once and sent again in its own time by a server without an engine: what
// the page costs by itself, as where the server is another machine.
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { extname } from 'node:path';
import { request, sleep } from './stage.mjs';

const PAGE = new URL('../../src/glassloop/server/static/', import.meta.url);
const TYPES = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml' };

/** What the engine tells of a request, and when: `blocks` are [milliseconds, server-sent event]. With a finished run,
 *  the request is a fork of it. */
export async function record(server, body, of = null) {
  const { runs } = await server.post(of === null ? '/api/runs' : `/api/runs/${of.id}/fork`, body);
  const stream = await request(`${server.address}/api/trees/${runs[0].tree}/events?after=0&close=true`);
  const blocks = [];
  let [rest, at, last] = ['', 0, null];
  for await (const text of stream.body.pipeThrough(new TextDecoderStream())) {
    const parts = (rest + text).split('\n\n');
    rest = parts.pop();
    for (const part of parts) {
      if (of !== null && part.includes(`"run":"${of.id}"`)) continue;
      if (part.includes('event: token')) last ??= performance.now();
      if (last !== null) {
        at += Math.min(performance.now() - last, 1000); // the machine may stand still
        last = performance.now();
      }
      blocks.push([at, part]);
    }
  }
  const wholes = await Promise.all(runs.map((run) => server.get(`/api/runs/${run.id}?alternatives=20`)));
  return { info: await server.get('/api/info'), runs, wholes, blocks, of };
}

export class Replay {
  #ended = new Set();
  #asked = new Set(); // runs that the page has opened

  constructor(recorded) {
    this.recorded = recorded;
    this.line = createServer((request, answer) => this.#answer(request, answer).catch((error) => answer.writeHead(404).end(String(error))));
  }

  async start() {
    await new Promise((resolve) => this.line.listen(0, '127.0.0.1', resolve));
    this.address = `http://127.0.0.1:${this.line.address().port}`;
    return this;
  }

  stop() {
    this.line.closeAllConnections();
    this.line.close();
  }

  get hash() {
    return `#run=${this.recorded.runs[0].id}`;
  }

  async #answer(request, answer) {
    const { pathname, searchParams } = new URL(request.url, this.address);
    if (pathname.endsWith('/events')) return this.#stream(answer);
    if (!pathname.startsWith('/api/')) {
      const file = pathname === '/' ? 'index.html' : pathname.slice(1);
      const content = await readFile(new URL(file, PAGE));
      return answer.writeHead(200, { 'content-type': TYPES[extname(file)] ?? 'text/plain' }).end(content);
    }
    return answer.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(this.#told(pathname, Number(searchParams.get('from')))));
  }

  /** A run is as it began until its end was sent; `from` leaves out the tokens before one. */
  #told(path, from) {
    const { info, runs, wholes, of = null } = this.recorded;
    if (path === '/api/info') return info;
    if (path === '/api/runs') return { runs: [...runs].reverse().concat(of ?? []) };
    if (path === `/api/runs/${of?.id}`) return of;
    const place = runs.findIndex((run) => path === `/api/runs/${run.id}`);
    if (place < 0) return {};
    this.#asked.add(path);
    const whole = wholes[place];
    if (this.#ended.has(whole.id)) return { ...whole, tokens: whole.tokens.slice(from) };
    return { ...whole, ...runs[place], tokens: whole.tokens.slice(from, runs[place].fork_at ?? 0), tail: '', end: null, beams: [] };
  }

  async #stream(answer) {
    answer.writeHead(200, { 'content-type': 'text/event-stream' }).flushHeaders();
    for (let waits = 0; waits < 100 && this.#asked.size < this.recorded.runs.length; waits++) await sleep(100);
    await sleep(1500); // the page has drawn them
    let began = performance.now();
    for (const [at, block] of this.recorded.blocks) {
      for (let early; (early = began + at - performance.now()) > 1; ) {
        const due = performance.now() + Math.min(early, 100);
        await sleep(Math.min(early, 100));
        if (performance.now() > due + 500) began += performance.now() - due; // the machine stood still
      }
      if (answer.destroyed) return;
      if (block.includes('event: end\n')) this.#ended.add(/"run":"([^"]+)"/.exec(block)[1]);
      answer.write(`${block}\n\n`);
    }
  }
}
