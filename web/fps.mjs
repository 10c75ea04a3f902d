// How smooth the page is while 16 branches are written: beside the engine, and by itself with a recorded stream.
//   PYTHON=.venv/bin/python node web/fps.mjs [STREAM.json] [--alone] [--profile]
// The stream is recorded without a browser, and kept in the file where one is named. --alone leaves the engine out
// where there is a file; --profile says which functions the time went to (npx vite build --minify false names them).
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { ask, launch, open, played, Server, set, sleep } from './e2e/stage.mjs';
import { record, Replay } from './e2e/replay.mjs';

const FRAME = 1000 / 60;
const PROMPT = 'Once upon a time there was a';
const SAMPLING = { temperature: 1, seed: 1, n: 16, max_tokens: 240, ignore_eos: true, logprobs: 20 };
const METRICS = ['TaskDuration', 'ScriptDuration', 'LayoutDuration', 'RecalcStyleDuration'];
const [file] = process.argv.slice(2).filter((each) => !each.startsWith('--'));
const profile = process.argv.includes('--profile');

const writing = (page) => page.waitForFunction(() => /^writing … [1-9]/.test(document.querySelector('.state')?.textContent.trim() ?? ''), null, { timeout: 60_000 });
const over = (page) => page.waitForFunction(() => !/^writing/.test(document.querySelector('.state').textContent.trim()), null, { timeout: 120_000, polling: 200 });

/** Frames and the work of the page's main thread, from the first token to the last. */
async function measure(page, until) {
  const line = await page.context().newCDPSession(page);
  await line.send('Performance.enable', { timeDomain: 'threadTicks' }); // the thread's own time, whoever else runs
  const read = async () => Object.fromEntries((await line.send('Performance.getMetrics')).metrics.map(({ name, value }) => [name, value]));
  if (profile) await line.send('Profiler.enable').then(() => line.send('Profiler.setSamplingInterval', { interval: 200 })).then(() => line.send('Profiler.start'));
  await page.evaluate(() => {
    window.frames_ = [];
    const tick = (at) => (window.frames_.push(at), requestAnimationFrame(tick));
    requestAnimationFrame(tick);
  });
  const before = await read();
  await until();
  const after = await read();
  if (profile) top((await line.send('Profiler.stop')).profile);
  const at = await page.evaluate(() => window.frames_);
  const times = at.slice(1).map((each, i) => each - at[i]).sort((one, other) => one - other);
  const quantile = (share) => times[Math.min(times.length - 1, Math.floor(share * times.length))];
  const work = (name) => (1000 * (after[name] - before[name])) / times.length;
  return {
    frames: times.length,
    'frames/s': (1000 * times.length) / (at.at(-1) - at[0]),
    'median ms': quantile(0.5),
    'p95 ms': quantile(0.95),
    'p99 ms': quantile(0.99),
    'worst ms': times.at(-1),
    'late %': (100 * times.filter((each) => each > 1.05 * FRAME).length) / times.length,
    ...Object.fromEntries(METRICS.map((name) => [`${name.replace('Duration', '').toLowerCase()} ms/frame`, work(name)])),
  };
}

/** Where the time of the main thread went, function by function. */
function top({ nodes, samples, timeDeltas }) {
  const self = new Map();
  const byId = new Map(nodes.map((node) => [node.id, node]));
  samples.forEach((id, i) => {
    const { functionName, lineNumber } = byId.get(id).callFrame;
    const name = `${functionName || '(anonymous)'}:${lineNumber}`;
    self.set(name, (self.get(name) ?? 0) + timeDeltas[i] / 1000);
  });
  for (const [name, ms] of [...self].sort((one, other) => other[1] - one[1]).slice(0, 45)) console.log(`${ms.toFixed(1).padStart(9)} ms  ${name}`);
}

const results = {};
const browser = await launch();
const show = async (name, page, until) => {
  results[name] = await measure(page, until);
  await page.context().close();
};
try {
  const server = new Server();
  let recorded = file && existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : null;
  const engine = !recorded || !process.argv.includes('--alone');
  if (engine) await server.start();
  if (!recorded) {
    recorded = await record(server, { prompt: PROMPT, sampling: SAMPLING });
    if (file) writeFileSync(file, JSON.stringify(recorded));
  }
  if (engine) {
    const page = await open(browser, server.address);
    await played(page);
    await show('at rest', page, () => sleep(3000));
    const live = await open(browser, server.address);
    await played(live);
    await live.getByRole('button', { name: 'settings' }).click();
    await live.locator('#option-ignore_eos').check();
    await live.keyboard.press('Escape');
    for (const name of ['temperature', 'seed', 'n', 'max_tokens']) await set(live, name, SAMPLING[name]);
    await ask(live, PROMPT);
    await writing(live);
    await show('beside the engine', live, () => over(live));
    await server.stop();
  }
  const replay = await new Replay(recorded).start();
  const page = await open(browser, replay.address, { hash: replay.hash });
  await writing(page);
  await show('page alone', page, () => over(page));
  replay.stop();
} finally {
  await browser.close();
}
for (const [name, row] of Object.entries(results)) console.log(`${name}\n${Object.entries(row).map(([what, value]) => `  ${what.padEnd(20)}${value.toFixed(what === 'frames' ? 0 : 2).padStart(9)}`).join('\n')}`);
console.log(JSON.stringify(results));
