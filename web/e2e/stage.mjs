// A real server with the default model and a real Chromium, for the end-to-end tests.
import { execFile, spawn } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { chromium } from 'playwright-core';

const PLACES = [process.env.CHROMIUM, '/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'];
export const browserPath = PLACES.find((path) => path && existsSync(path));
const FLAGS = ['--no-sandbox', '--disable-gpu'];

export class Server {
  #process = null;
  #folder;
  address = '';

  /** With another server, it has the same store. */
  constructor(beside = null) {
    this.#folder = beside ? beside.#folder : mkdtempSync(join(tmpdir(), 'glassloop-studio-'));
    process.once('exit', () => (this.#process?.kill('SIGKILL'), this.forget()));
  }

  get store() {
    return join(this.#folder, 'runs.db');
  }

  /** A command of the terminal with the store of this server. */
  terminal(...command) {
    return promisify(execFile)(process.env.PYTHON ?? 'python3', ['-m', 'glassloop', ...command], { env: { ...process.env, GLASSLOOP_STORE: this.store } });
  }

  /** Removes the store, which is of this server alone: the next start knows no run. */
  forget() {
    rmSync(this.#folder, { recursive: true, force: true });
  }

  get training() {
    return join(this.#folder, 'training');
  }

  /** Writes the curves of a real training run, which the server shows. */
  #train() {
    const run = join(this.training, 'notes');
    mkdirSync(run, { recursive: true });
    copyFileSync(new URL('../test/data/curves.jsonl', import.meta.url), join(run, 'curves.jsonl'));
    writeFileSync(join(run, 'config.toml'), 'steps = 300\nlr = 0.001\n');
  }

  /** With the address of another server, that one computes. */
  async start(port = 0, upstream = null) {
    this.#train();
    const python = process.env.PYTHON ?? 'python3';
    const own = upstream ? ['--upstream', upstream] : ['--kv-memory', '600MB', '--training', this.training];
    const options = ['--port', String(port), '--store', this.store, '--grace', '0', ...own];
    this.#process = spawn(python, ['-m', 'glassloop', 'serve', ...options], { stdio: ['ignore', 'ignore', 'pipe'] });
    this.address = await new Promise((resolve, reject) => {
      let told = '';
      this.#process.stderr.on('data', (data) => {
        told += data;
        const found = /at (http:\/\/[\d.]+:\d+)/.exec(told);
        if (found) resolve(found[1]);
      });
      this.#process.once('exit', (code) => reject(new Error(`the server ended with ${code}: ${told.slice(-2000)}`)));
    });
    for (let tries = 0; tries < 100; tries++) {
      if (await fetch(`${this.address}/health`).then((answer) => answer.ok, () => false)) return this;
      await sleep(50);
    }
    throw new Error('the server does not answer');
  }

  async stop(signal = 'SIGKILL') {
    if (!this.#process || this.#process.exitCode !== null || this.#process.signalCode !== null) return;
    const ended = new Promise((resolve) => this.#process.once('exit', resolve));
    this.#process.kill(signal);
    await ended;
  }

  get port() {
    return Number(new URL(this.address).port);
  }

  async get(path) {
    const answer = await request(this.address + path);
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
    return answer.json();
  }

  async post(path, body) {
    const answer = await request(this.address + path, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) });
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
    return answer.json();
  }

  /** A finished run. */
  async make(body) {
    const { runs } = await this.post('/api/runs', body);
    for (;;) {
      const run = await this.get(`/api/runs/${runs[0].id}`);
      if (run.status === 'done' || run.status === 'failed') return run;
      await sleep(30);
    }
  }
}

/** Asked again if the server closed a kept connection just then: both sides may be late, where the machine stood still. */
export const request = (...asked) => fetch(...asked).catch(() => fetch(...asked));
export const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
export const launch = () => chromium.launch({ executablePath: browserPath, args: FLAGS, timeout: 120_000 });

/** A page of the studio. It notes every error and every request that leaves the server's own origin. */
export async function open(browser, address, { hash = '', width = 1280, height = 900, scheme = 'dark', reducedMotion = 'reduce', before = () => {}, ...more } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme, reducedMotion, ...more });
  const page = await context.newPage();
  page.setDefaultTimeout(60_000); // a machine that is shared may stand still for half a minute
  page.errors = [];
  page.strangers = [];
  page.on('pageerror', (error) => page.errors.push(String(error)));
  page.on('console', (message) => /Content Security Policy|Uncaught/.test(message.text()) && page.errors.push(message.text()));
  page.on('request', (request) => !request.url().startsWith(address) && !/^(data|blob):/.test(request.url()) && page.strangers.push(request.url()));
  page.on('dialog', (dialog) => (page.errors.push(`dialog: ${dialog.message()}`), dialog.dismiss()));
  await before(page);
  await page.goto(`${address}/${hash}`);
  return page;
}

/** The run that the page looks at, as the server has it. */
export async function current(page, server) {
  const id = await page.locator('[role=treeitem].path').first().getAttribute('data-run');
  return server.get(`/api/runs/${id}`);
}

/** The run that the page looks at, once it is another than the one named, has ended, and is all on the page. */
export async function settled(page, server, before = null) {
  for (let tries = 0; tries < 400; tries++, await sleep(40)) {
    const id = await page.locator('[role=treeitem].path').first().getAttribute('data-run', { timeout: 5000 }).catch(() => null);
    if (id === null || id === before) continue;
    const run = await server.get(`/api/runs/${id}`).catch(() => null);
    if (run === null || run.status === 'running' || run.status === 'waiting') continue;
    const told = (await page.locator('.state').textContent()).trim();
    if (told.startsWith(`${run.tokens.length.toLocaleString('en')} token${run.tokens.length === 1 ? '' : 's'}.`)) return run;
  }
  throw new Error('no run has ended on the page');
}

/** Between the page and the server, so that a test can cut the line. */
export async function proxy(port) {
  const sockets = new Set();
  let cut = false;
  const line = createServer((socket) => {
    if (cut) return socket.destroy();
    const other = connect(port, '127.0.0.1');
    for (const [one, two] of [[socket, other], [other, socket]]) {
      sockets.add(one);
      one.on('error', () => two.destroy()).on('close', () => (sockets.delete(one), two.destroy()));
      one.pipe(two);
    }
  });
  await new Promise((resolve) => line.listen(0, '127.0.0.1', resolve));
  return {
    address: `http://127.0.0.1:${line.address().port}`,
    cut: () => ((cut = true), sockets.forEach((socket) => socket.destroy())),
    mend: () => (cut = false),
    close: () => (sockets.forEach((socket) => socket.destroy()), line.close()),
  };
}

/** The first run has been played and one branch pulses. */
export async function played(page) {
  await page.locator('.item.pulse').waitFor();
}

export async function ask(page, prompt, options = {}) {
  await page.getByRole('textbox', { name: 'Prompt' }).fill(prompt);
  for (const [name, value] of Object.entries(options)) await set(page, name, value);
  await page.getByRole('button', { name: 'Run', exact: true }).click();
}

export async function set(page, name, value) {
  await page.getByRole('button', { name: 'settings' }).click();
  await page.locator(`#option-${name}`).fill(String(value));
  await page.locator(`#option-${name}`).blur();
  await page.keyboard.press('Escape');
  await page.locator('dialog').waitFor({ state: 'detached' });
}
