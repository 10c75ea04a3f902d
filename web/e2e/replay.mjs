// A stream of the real engine, recorded once and sent again in its own time by a server without an engine: what
// the page costs by itself, as where the server is another machine.
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { extname } from 'node:path';
import { sleep } from './stage.mjs';

const PAGE = new URL('../../src/glassloop/server/static/', import.meta.url);
const TYPES = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml' };

/** What the engine tells of a request, and when: `blocks` are [milliseconds, server-sent event]. */
export async function record(server, body) {
  const { runs } = await server.post('/api/runs', body);
  const stream = await fetch(`${server.address}/api/trees/${runs[0].tree}/events?after=0&close=true`);
  const blocks = [];
  let [rest, began] = ['', null];
  for await (const text of stream.body.pipeThrough(new TextDecoderStream())) {
    const parts = (rest + text).split('\n\n');
    rest = parts.pop();
    for (const part of parts) {
      if (part.includes('event: token')) began ??= performance.now();
      blocks.push([began === null ? 0 : performance.now() - began, part]);
    }
  }
  const wholes = await Promise.all(runs.map((run) => server.get(`/api/runs/${run.id}?alternatives=20`)));
  return { info: await server.get('/api/info'), runs, wholes, blocks };
}

export class Replay {
  #ended = new Set();

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
    const { pathname } = new URL(request.url, this.address);
    if (pathname.endsWith('/events')) return this.#stream(answer);
    if (!pathname.startsWith('/api/')) {
      const file = pathname === '/' ? 'index.html' : pathname.slice(1);
      const content = await readFile(new URL(file, PAGE));
      return answer.writeHead(200, { 'content-type': TYPES[extname(file)] ?? 'text/plain' }).end(content);
    }
    return answer.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(this.#told(pathname)));
  }

  /** A run is as it began until its end was sent. */
  #told(path) {
    const { info, runs, wholes } = this.recorded;
    if (path === '/api/info') return info;
    if (path === '/api/runs') return { runs: [...runs].reverse() };
    const place = runs.findIndex((run) => path === `/api/runs/${run.id}`);
    if (place < 0) return {};
    return this.#ended.has(runs[place].id) ? wholes[place] : { ...wholes[place], ...runs[place], tokens: [], tail: '', end: null, beams: [] };
  }

  async #stream(answer) {
    answer.writeHead(200, { 'content-type': 'text/event-stream' }).flushHeaders();
    await sleep(1500); // the page has opened
    const began = performance.now();
    for (const [at, block] of this.recorded.blocks) {
      const early = began + at - performance.now();
      if (early > 1) await sleep(early);
      if (answer.destroyed) return;
      if (block.includes('event: end\n')) this.#ended.add(/"run":"([^"]+)"/.exec(block)[1]);
      answer.write(`${block}\n\n`);
    }
  }
}
