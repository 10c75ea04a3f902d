// How smooth the page is while 16 branches are written: beside the engine, and by itself with a recorded stream.
//   PYTHON=.venv/bin/python node web/fps.mjs [STREAM.json] [--long] [--seconds N] [--alone] [--profile]
// With --long the branches are forks of a text of 3,760 tokens and end at 4,000, and afterwards the text and the tree
// are scrolled. The stream is recorded without a browser, and kept in the file where one is named; --seconds sends it
// in that time, whatever the engine took. --alone leaves the engine out where there is a file; --profile says which
// functions the time went to (npx vite build --minify false names them).
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { ask, launch, open, played, Server, set, sleep } from './e2e/stage.mjs';
import { record, Replay } from './e2e/replay.mjs';

const FRAME = 1000 / 60;
const PROMPT = 'Once upon a time there was a';
const SAMPLING = { temperature: 1, seed: 1, n: 16, max_tokens: 240, ignore_eos: true, logprobs: 20 };
const LONG = { tokens: 4000, kept: 3760 };
const METRICS = ['TaskDuration', 'ScriptDuration', 'LayoutDuration', 'RecalcStyleDuration'];
const given = process.argv.slice(2);
const seconds = given.includes('--seconds') ? Number(given.splice(given.indexOf('--seconds'), 2)[1]) : null;
const [file] = given.filter((each) => !each.startsWith('--'));
const [profile, long] = ['--profile', '--long'].map((each) => given.includes(each));

const writing = (page) => page.waitForFunction(() => /^writing … [1-9]/.test(document.querySelector('.state')?.textContent.trim() ?? ''), null, { timeout: 60_000 });
const over = (page) => page.waitForFunction(() => !/^writing/.test(document.querySelector('.state').textContent.trim()), null, { timeout: 120_000, polling: 200 });

/** Scrolls the text from its beginning to its end and the tree from its beginning on, a bit in every frame. */
const scrolling = (page) =>
  page.evaluate(async () => {
    const [text, tree] = [document.querySelector('.text'), document.querySelector('.tree')];
    text.scrollTop = tree.scrollLeft = 0;
    for (let frame = 0; frame < 240; frame++) {
      await new Promise((resolve) => requestAnimationFrame(resolve));
      text.scrollTop = 28 * Math.round((text.scrollHeight * frame) / 240 / 28); // by whole lines, as the page does
      tree.scrollLeft = (tree.scrollWidth * frame) / 240;
    }
  });

/** Frames and the work of the page's main thread, from the first token to the last. */
async function measure(page, until) {
  const line = await page.context().newCDPSession(page);
  await line.send('Performance.enable', { timeDomain: 'threadTicks' }); // the thread's own time, whoever else runs
  const read = async () => Object.fromEntries((await line.send('Performance.getMetrics')).metrics.map(({ name, value }) => [name, value]));
  if (profile) await line.send('Profiler.enable').then(() => line.send('Profiler.setSamplingInterval', { interval: 200 })).then(() => line.send('Profiler.start'));
  await page.evaluate(() => {
    const times = (window.frames_ = []); // a measurement before this one goes on with a list of its own
    const tick = (at) => (times.push(at), window.frames_ === times && requestAnimationFrame(tick));
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
    'busy %': (100 * (after.TaskDuration - before.TaskDuration)) / ((at.at(-1) - at[0]) / 1000), // of the main thread, whoever else runs
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
  const engine = !recorded || !given.includes('--alone');
  if (engine) await server.start();
  const parent = engine && long ? await server.make({ prompt: PROMPT, sampling: { ...SAMPLING, n: 1, max_tokens: LONG.kept } }) : null;
  const fork = { at: LONG.kept, sampling: { n: SAMPLING.n, max_tokens: LONG.tokens } };
  if (!recorded) {
    recorded = parent ? await record(server, fork, parent) : await record(server, { prompt: PROMPT, sampling: SAMPLING });
    if (file) writeFileSync(file, JSON.stringify(recorded));
  }
  if (seconds !== null) {
    const { blocks } = recorded;
    recorded = { ...recorded, blocks: blocks.map(([at, block]) => [(1000 * seconds * at) / blocks.at(-1)[0], block]) };
  }
  if (engine) {
    const page = await open(browser, server.address);
    await played(page);
    await show('at rest', page, () => sleep(3000));
    const live = await open(browser, server.address, { hash: parent ? `#run=${parent.id}` : '' });
    if (parent) {
      await live.locator('.item.path').first().waitFor();
      const { runs } = await server.post(`/api/runs/${parent.id}/fork`, fork);
      await live.waitForFunction((run) => document.querySelector(`[data-run="${run}"]`), runs[0].id);
      await live.evaluate((hash) => (location.hash = hash), `#run=${runs[0].id}`);
    } else {
      await played(live);
      await live.getByRole('button', { name: 'settings' }).click();
      await live.locator('#option-ignore_eos').check();
      await live.keyboard.press('Escape');
      for (const name of ['temperature', 'seed', 'n', 'max_tokens']) await set(live, name, SAMPLING[name]);
      await ask(live, PROMPT);
    }
    await writing(live);
    await show('beside the engine', live, () => over(live));
    await server.stop();
  }
  const replay = await new Replay(recorded).start();
  const page = await open(browser, replay.address, { hash: replay.hash });
  await writing(page);
  results['page alone'] = await measure(page, () => over(page));
  if (long) {
    await page.waitForFunction(() => !/writing …/.test(document.querySelector('#lens').textContent), null, { timeout: 60_000 });
    await sleep(1500);
    results['scrolling'] = await measure(page, () => scrolling(page));
  }
  await page.context().close();
  replay.stop();
} finally {
  await browser.close();
}
for (const [name, row] of Object.entries(results)) console.log(`${name}\n${Object.entries(row).map(([what, value]) => `  ${what.padEnd(20)}${value.toFixed(what === 'frames' ? 0 : 2).padStart(9)}`).join('\n')}`);
console.log(JSON.stringify(results));
