// What the tests of one file share: a server, a browser, and the page that a test looks at. Importing it registers the
// hooks that start and stop them, and check after each test that no script failed and no request left the server.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, afterEach, before } from 'node:test';
import { browserPath, launch, open, Server } from './stage.mjs';

export const axe = readFileSync(new URL('../node_modules/axe-core/axe.min.js', import.meta.url), 'utf8');
export const skip = browserPath ? false : 'no Chromium here (apt install chromium, or set CHROMIUM)';
export let browser;
export let server;
export let page;

before(async () => {
  if (skip) return;
  const [started, opened] = await Promise.allSettled([new Server().start(), launch()]);
  [server, browser] = [started.value, opened.value]; // what did start must be stopped, or the process stays alive
  assert.ok(server && browser, String(started.reason ?? opened.reason));
});
after(async () => {
  await browser?.close();
  await server?.stop();
});
afterEach(async () => {
  if (!page) return;
  const { errors, strangers } = page;
  await page.context().close();
  page = null;
  assert.deepEqual(errors, [], 'no script failed');
  assert.deepEqual(strangers, [], 'no request left the server’s own origin');
});

export const visit = async (address, options) => (page = await open(browser, address, options));
export const studio = (options) => visit(server.address, options);
export const percent = (text) => parseFloat(text.replace('>', '')) / 100;

/** Fails if axe finds something serious in a part of the page. */
export async function accessible(selector) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate((part) => axe.run(document.querySelector(part), { resultTypes: ['violations'] }), selector);
  assert.deepEqual(violations.filter((each) => /serious|critical/.test(each.impact)).map((each) => `${each.id} ${each.nodes[0].html.slice(0, 200)}`), []);
}

/** Waits until an element has been in the same place for 30 frames: whatever scrolls has come to rest. */
export const atRest = (selector) =>
  page.locator(selector).evaluate(async (node) => {
    for (let still = 0, last = NaN; still < 30; ) {
      await new Promise((resolve) => requestAnimationFrame(resolve));
      const { x, y } = node.getBoundingClientRect();
      [still, last] = [x + y === last ? still + 1 : 0, x + y];
    }
  });
