// Makes the pictures of the README and of docs/studio-design.md:  PYTHON=.venv/bin/python node web/screenshots.mjs
import { writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { launch, open, played, Server, settled, sleep } from './e2e/stage.mjs';

const folder = fileURLToPath(new URL('../docs/images/', import.meta.url));

/** Compares three strategies with the branches that are there, and waits for the rows of all of them. */
async function compare(page, rows) {
  await page.keyboard.press('c');
  await page.waitForFunction((count) => document.querySelectorAll('#lens tr[data-run]').length === count && !/(writing|waiting) …/.test(document.querySelector('#lens table').textContent), rows);
}

/** Waits for the reasons and the what-ifs, with the mouse out of the way. */
async function rest(page) {
  await page.mouse.move(3, 3);
  await sleep(2500);
}

/** Returns two pictures beside each other at two thirds of their size, as WebP. */
async function beside(page, pictures) {
  const encoded = await page.evaluate(async (sources) => {
    const images = await Promise.all(sources.map(async (source) => createImageBitmap(await (await fetch(source)).blob(), { resizeWidth: 960, resizeHeight: 600, resizeQuality: 'high' })));
    const canvas = Object.assign(document.createElement('canvas'), { width: 2 * 960 + 16, height: 600 });
    const context = canvas.getContext('2d');
    context.fillStyle = '#808080';
    context.fillRect(0, 0, canvas.width, canvas.height);
    images.forEach((image, i) => context.drawImage(image, i * (960 + 16), 0));
    return canvas.toDataURL('image/webp', 0.84).split(',')[1];
  }, pictures.map((picture) => `data:image/png;base64,${picture.toString('base64')}`));
  return Buffer.from(encoded, 'base64');
}

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
      await compare(page, 5);
      await page.locator(`#lens tr[data-run="${fork.id}"] td:first-child button`).click();
    }
    await rest(page);
    await page.screenshot({ path: `${folder}${name}.jpg`, type: 'jpeg', quality: 74 });
  }
  const halves = [];
  for (const scheme of ['dark', 'light']) {
    const page = await open(browser, server.address, { scheme, width: 1440, height: 900 });
    await played(page);
    await settled(page, server);
    await compare(page, 4);
    await rest(page);
    halves.push(await page.screenshot());
  }
  await writeFile(`${folder}studio-after.webp`, await beside(await browser.newPage(), halves));
} finally {
  await browser.close();
  await server.stop();
}
