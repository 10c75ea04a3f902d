// The studio in front of another engine: what that one told is shown, and everything else is unknown, never a number.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { browserPath, launch, open, Server, settled } from './stage.mjs';

const axe = readFileSync(new URL('../node_modules/axe-core/axe.min.js', import.meta.url), 'utf8');
const skip = browserPath ? false : 'no Chromium here (apt install chromium, or set CHROMIUM)';
let browser;
let behind;
let server;

before(async () => {
  if (skip) return;
  [behind, browser] = await Promise.all([new Server().start(), launch()]);
  server = await new Server().start(0, behind.address);
});
after(async () => {
  await browser?.close();
  await server?.stop();
  await behind?.stop();
});

test('what another engine told is shown, all else is unknown, and an alternative forks', { skip }, async () => {
  const page = await open(browser, server.address, { before: (page) => page.addInitScript(axe) });
  const run = await settled(page, server);
  assert.equal(run.upstream.server, 'glassloop');
  await page.locator('[data-token="1"]').first().click();
  const why = page.locator('section[aria-label="Why this token"]');
  await why.getByText('are not known here').waitFor();
  const rows = why.locator('table[aria-label="Candidates"] tbody tr[data-candidate]');
  const token = run.tokens[1];
  for (const cells of await rows.locator('td.number').allTextContents().then((all) => all.filter((_, i) => i % 2))) assert.equal(cells, 'unknown');
  assert.equal(await why.locator('table[aria-label="The race"]').count(), 0);
  await why.getByText('The record', { exact: true }).click();
  assert.equal(Number(await why.locator('[data-field=raw_logprob]').textContent()), token.raw_logprob);
  for (const name of ['logprob', 'rank', 'rank_after', 'entropy', 'log_sum_exp', 'luck', 'margin']) assert.equal(await why.locator(`[data-field=${name}]`).textContent(), 'unknown', name);
  await page.getByText('entropy, nats: unknown').waitFor();
  const found = await page.evaluate(() => window.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa'] }));
  assert.deepEqual(found.violations.filter(({ impact }) => ['serious', 'critical'].includes(impact)).map(({ id }) => id), []);
  for (const [key, row, columns] of [['5', 'tr.on', [8]], ['x', 'tr[data-replica]', [6, 9]]]) {
    await page.keyboard.press(key);
    await page.locator(`#lens ${row}`).waitFor();
    const cells = await page.locator(`#lens ${row} td`).allTextContents();
    assert.deepEqual(columns.map((column) => cells[column]), columns.map(() => 'unknown'), row);
  }
  await page.keyboard.press('3');
  assert.deepEqual(await page.locator('#lens .facts b').allTextContents().then((all) => all.map((text) => text.trim())), Array(5).fill('unknown'));
  const other = token.alternatives.find(({ id }) => id !== token.id);
  await why.locator(`tr[data-candidate="${other.id}"] button`).click();
  const fork = await settled(page, server, run.id);
  assert.equal(fork.parent, run.id);
  assert.equal(fork.tokens[1].text, other.text);
  assert.deepEqual([page.errors, page.strangers], [[], []]);
});
