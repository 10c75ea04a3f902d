// docs/lesson.md, done as it says: what the class is to see is on the page.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { page, server, skip, studio } from './scene.mjs';
import { current, played, settled } from './stage.mjs';

const plan = readFileSync(new URL('../../docs/lesson.md', import.meta.url), 'utf8');
/** Fails unless the plan says this. */
const told = (text) => (assert.ok(plan.includes(text), `docs/lesson.md does not have “${text}”`), text);
const cells = (row) => page.locator(`${row} td`).allTextContents();
const plain = (text) => text.replace(/·/g, '').trim();
/** The sum of a candidate as the plan has it. */
async function sum(id, temperature) {
  const [, logit, , luck, score] = await cells(`tr[data-racer="${id}"]`);
  return `${logit} ÷ ${temperature} ${luck[0] === '+' ? '+' : '−'} ${luck.slice(1)} = ${score}`;
}
const slide = (temperature) => page.locator('.whatif input[type=range]').first().fill(String(temperature));
const winner = (text) => page.waitForFunction((text) => document.querySelector('[data-luck=same] b')?.textContent.includes(text), text);
async function write(prompt) {
  await page.keyboard.press('Escape');
  await page.keyboard.press('/');
  await page.keyboard.press('Control+a');
  await page.keyboard.type(told(prompt));
}

test('the lesson shows what its plan says', { skip }, async () => {
  await studio({ height: 720 });
  await played(page);
  const first = await current(page, server);
  // The loop
  await page.getByRole('button', { name: told('To the start') }).click();
  await page.locator('body').press('.');
  await page.waitForFunction(() => document.querySelectorAll('.token[data-token]:not(.later)').length > 0);
  for (const piece of first.tokens.slice(0, 4).map((token) => token.piece.trim())) told(`\`${piece}\``);
  // Probabilities
  await page.locator('[data-token="0"]').click();
  const idAt = async (at, text) => (await server.get(`/api/runs/${first.id}/explain/${at}`)).candidates.find((each) => each.text === ` ${text}`).id;
  const share = async (at, text) => (await cells(`tr[data-candidate="${await idAt(at, text)}"]`))[1];
  await page.locator('.sentence').filter({ hasText: '“ Paris” was the likeliest' }).waitFor();
  told(`\`Paris\` ${await share(0, 'Paris')} and \`the\` ${await share(0, 'the')}`);
  await page.locator('[data-token="3"]').click();
  await page.locator('.sentence').filter({ hasText: '“ cuisine” was 2nd' }).waitFor();
  told(`${await share(3, 'is')} against ${await share(3, 'cuisine')}`);
  await page.getByText(told('49,142 others')).waitFor();
  // Luck
  await page.getByRole('button', { name: told('Enlarge the reasons') }).click();
  await page.getByText(told('logit ÷ temperature + luck = score')).waitFor();
  for (const name of ['cuisine', 'is', 'culture']) told(`\`${name}\` ${await sum(await idAt(3, name), 0.8)}`);
  // Temperature
  await slide(0.1);
  await winner('is');
  await slide(1.4);
  await winner(told('aging'));
  await page.locator('[data-luck=same] button').click();
  const wild = await settled(page, server, first.id);
  await page.locator('.sentence').filter({ hasText: '“ aging” was 8136th' }).waitFor();
  told(await sum(wild.tokens[3].id, 1.4));
  await page.keyboard.press('Escape');
  // Tokens
  await write('Transformers hyperventilate on Wednesdays because');
  await page.getByText(told('10 tokens')).waitFor();
  await page.keyboard.press('Escape');
  await page.keyboard.press('6');
  await page.getByLabel('A word whose neighbours are shown').fill(told('Monday'));
  await page.locator('[data-neighbour]').filter({ hasText: 'Tuesday' }).first().waitFor();
  for (const row of (await page.locator('[data-neighbour]').all()).slice(0, 3)) {
    const [name, cosine] = (await row.locator('td').allTextContents()).map(plain);
    told(`\`${name}\` ${cosine}`);
  }
  // Seeds
  await write('The best thing about the sea is');
  await page.getByRole('button', { name: told('Run seeds 1 to') }).click();
  await page.waitForFunction(() => document.querySelectorAll('#lens tr[data-run]').length === 5 && !/(writing|waiting) …/.test(document.querySelector('#lens table').textContent));
  const one = await current(page, server);
  assert.equal(one.seed, 1);
  await page.getByLabel('seed', { exact: true }).fill('1');
  await page.getByRole('button', { name: 'Run', exact: true }).click();
  assert.equal((await settled(page, server, one.id)).text, one.text);
  // A likely text
  await write('The first thing I saw was');
  await page.getByLabel('Most tokens of a run').fill('12');
  await page.keyboard.press('Tab');
  await page.getByRole('tab', { name: 'Compare' }).click();
  for (const [name, on] of [['nucleus', false], ['wild', false], ['beams', true]]) await page.getByRole('checkbox', { name }).setChecked(on);
  await page.getByRole('button', { name: told('Compare on this prompt') }).click();
  await page.waitForFunction(() => document.querySelectorAll('#lens tr[data-run]').length === 2 && !/(writing|waiting) …/.test(document.querySelector('#lens table').textContent));
  const rows = await page.locator('#lens tr[data-run]').all();
  for (const [row, text] of [[rows[0], 'a woman with a scarf'], [rows[1], 'the sky. It was a deep, foreboding blue']]) {
    const [, shown, tokens, , logprob] = await row.locator('td').allTextContents();
    assert.ok(shown.trim().startsWith(told(text)), shown);
    assert.equal(tokens, '12', 'texts of the same length are compared');
    told(logprob);
  }
  // Take it home
  await page.evaluate((id) => (location.hash = `#run=${id}`), wild.id);
  await page.waitForFunction((id) => document.querySelector('.item.path')?.dataset.run === id, wild.id);
  await page.getByRole('button', { name: told('Where did it go wrong?') }).click();
  await page.locator('[data-worst="Most surprising"] tbody tr').first().waitFor();
  const surprising = await page.locator('[data-worst="Most surprising"] tbody tr td.mono').allTextContents();
  assert.equal(plain(surprising[0]), 'aging');
  const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: told('save as a web page') }).click()]);
  assert.equal(download.suggestedFilename(), `${wild.id}.html`);
  const html = readFileSync(await download.path(), 'utf8');
  assert.ok(html.includes(`id="why-${wild.tokens.length - 1}"`) && html.includes('aging'));
});
