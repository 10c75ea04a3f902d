// Makes the pictures of the README:  PYTHON=.venv/bin/python node web/screenshots.mjs
import { mkdir } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { launch, open, played, Server, settled, sleep } from './e2e/stage.mjs';

const folder = fileURLToPath(new URL('../docs/images/', import.meta.url));
await mkdir(folder, { recursive: true });
const server = await new Server().start();
const browser = await launch();
try {
  for (const [scheme, name, height] of [['dark', 'studio', 800], ['light', 'studio-compare', 860]]) {
    const page = await open(browser, server.address, { scheme, width: 1400, height });
    await played(page);
    const first = await settled(page, server);
    await page.locator('.item.pulse').click();
    const fork = await settled(page, server, first.id);
    if (scheme === 'light') {
      await page.keyboard.press('c');
      await page.waitForFunction(() => document.querySelectorAll('#lens tr[data-run]').length === 5 && !/(writing|waiting) …/.test(document.querySelector('#lens table').textContent));
      await page.locator(`#lens tr[data-run="${fork.id}"] td:first-child button`).click();
    }
    await page.mouse.move(3, 3);
    await sleep(2500); // the what-ifs
    await page.screenshot({ path: `${folder}${name}.jpg`, type: 'jpeg', quality: 74 });
  }
} finally {
  await browser.close();
  await server.stop();
}
