// The page /docs in a real browser: examples are sent with the keyboard, answers shown as they come.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { accessible, page, server, skip, studio } from './scene.mjs';

/** The status line of a form whose answer is complete. */
async function answered(part) {
  const status = part.locator('output p');
  await part.page().waitForFunction((line) => / s$/.test(line.textContent), await status.elementHandle());
  return status.textContent();
}

for (const [width, scheme] of [[1200, 'light'], [1200, 'dark'], [390, 'light']]) {
  test(`examples can be tried by keyboard: ${width} px, ${scheme}`, { skip }, async () => {
    await server.make({ prompt: 'The sea is', sampling: { max_tokens: 3, seed: 3 } });
    await studio({ hash: 'docs', width, scheme });
    const missing = [];
    page.on('response', (answer) => answer.status() === 404 && missing.push(answer.url()));
    const chat = page.locator('details').first();
    assert.match(await chat.locator('summary').textContent(), /POST \/v1\/chat\/completions\s+Generates the next turn/);
    await chat.locator('summary').focus();
    await page.keyboard.press('Enter');
    await chat.getByRole('button', { name: 'streamed' }).press('Enter');
    await chat.getByRole('textbox', { name: 'body' }).press('Control+Enter');
    assert.match(await answered(chat), /^200 OK, text\/event-stream/);
    assert.match(await chat.locator('output pre').textContent(), /^data: .*data: \[DONE\]\s*$/s);
    await chat.getByRole('button', { name: 'with a tool' }).press('Enter');
    await chat.getByRole('button', { name: 'Send' }).press('Enter');
    await page.waitForFunction(() => document.querySelector('output pre').textContent.includes('"finish_reason": "tool_calls"'));
    const explain = page.locator('details', { hasText: 'Explains why a token was chosen' });
    await explain.locator('summary').click();
    await page.waitForFunction(() => [...document.querySelectorAll('input[data-id]')].every((input) => input.value));
    await explain.getByRole('button', { name: 'Send' }).click();
    assert.match(await answered(explain), /^200 OK, application\/json/);
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0, 'nothing is cut off');
    await accessible('html');
    assert.deepEqual(missing, []);
  });
}
