// The page itself: reasons, numbers, panels, keys, screen readers, settings, hostile texts.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { axe, page, percent, server, skip, studio } from './scene.mjs';
import { ask, current, played, set, settled, sleep } from './stage.mjs';

test('beams, forced tokens and the prompt are told in the server’s own sentence', { skip }, async () => {
  const beam = await server.make({ prompt: 'The sea is', sampling: { beam_width: 3, max_tokens: 6, seed: 3 } });
  const first = await server.make({ prompt: 'The sea is', sampling: { max_tokens: 6, seed: 3, logprobs: 20 } });
  const { id } = (await server.post(`/api/runs/${first.id}/fork`, { at: 2, token: first.tokens[2].runner_up })).runs[0];
  for (const [run, says] of [[beam.id, 'Beam search scores the whole text'], [id, 'You forced “']]) {
    const { sentence } = await server.get(`/api/runs/${run}/explain/2`);
    assert.ok(sentence.includes(says), sentence);
    await studio({ hash: `#run=${run}&at=2` });
    await page.waitForFunction((text) => document.querySelector('.sentence')?.textContent === text, sentence);
  }
  const { sentence } = await server.get(`/api/runs/${id}/explain/2?of=prompt`);
  await page.keyboard.press('4');
  await page.locator('button.piece').nth(2).click();
  await page.waitForFunction((text) => document.querySelector('.told')?.textContent === text, sentence);
  assert.ok(await page.locator('button.piece').first().isDisabled(), 'nothing is before the first token');
});

test('every number on the page is the engine’s own', { skip }, async () => {
  const run = await server.make({ prompt: 'The sea is', sampling: { temperature: 0.9, top_k: 40, top_p: 0.95, seed: 3, max_tokens: 12, logprobs: 20 } });
  await studio({ hash: `#run=${run.id}&at=4` });
  await page.locator('tr.won[data-candidate]').waitFor();
  await page.keyboard.press('4');
  await page.locator('tr[data-row="11"]').waitFor();
  for (const token of run.tokens) {
    const cells = await page.locator(`tr[data-row="${token.index}"] td`).allTextContents();
    assert.equal(Number(cells[2]), token.id);
    assert.equal(cells[3], token.bytes);
    assert.ok(Math.abs(percent(cells[4]) - Math.exp(token.raw_logprob)) < 6e-4 || cells[4].startsWith('>'), cells[4]);
    assert.ok(Math.abs(percent(cells[5]) - Math.exp(token.logprob)) < 6e-4 || cells[5].startsWith('>'), cells[5]);
    assert.equal(Number(cells[0]), token.index);
    assert.equal(Number(cells[6].replaceAll(',', '')), token.rank);
    assert.equal(cells[7], token.entropy.toFixed(3));
    assert.equal(Number(cells[8].replace('−', '-')).toFixed(2), token.luck.toFixed(2));
  }
  // The record has every digit.
  await page.getByText('The record', { exact: true }).click();
  for (const name of ['raw_logprob', 'logprob', 'rank', 'rank_after', 'entropy', 'log_sum_exp', 'luck', 'margin', 'seconds'])
    assert.equal(await page.locator(`[data-field="${name}"]`).textContent(), String(run.tokens[4][name] ?? 'null'), name);
  // The panel has the explanation's.
  const told = await server.get(`/api/runs/${run.id}/explain/4`);
  await page.locator('tr.won[data-candidate]').waitFor();
  assert.equal((await page.locator('.sentence').textContent()).trim(), told.sentence);
  for (const each of told.candidates) {
    const cells = await page.locator(`tr[data-candidate="${each.id}"] td`).allTextContents();
    assert.ok(Math.abs(percent(cells[1]) - Math.exp(each.raw_logprob)) <= 6e-4 || cells[1].startsWith('>'), cells[1]);
    if (each.logprob === null) assert.equal(cells[2], '—');
    else assert.ok(Math.abs(percent(cells[2]) - Math.exp(each.logprob)) <= 6e-4 || cells[2].startsWith('>'), cells[2]);
  }
  for (const stage of told.stages) {
    const text = await page.locator(`[data-stage="${stage.name}"]`).textContent();
    assert.ok(text.includes(stage.survivors.toLocaleString('en')), text);
  }
  const racer = await page.locator(`tr[data-racer="${told.winner.id}"] td`).allTextContents();
  const { raw_logit, logit, luck, score } = told.winner;
  const [raw, scaled, added, sum] = racer.slice(1, 5).map((cell) => Number(cell.replace('−', '-')));
  assert.deepEqual([raw, scaled, added, sum], [raw_logit, logit, luck, score].map((value) => Number(value.toFixed(3))));
  assert.ok(Math.abs(raw / told.sampling.temperature + added - sum) < 0.005, 'logit ÷ temperature + luck = score, with the numbers that are shown');
  await page.getByText('logit ÷ temperature + luck = score').waitFor();
});

test('an edit shows its tokens before it runs', { skip }, async () => {
  await studio();
  await played(page);
  const before = await current(page, server);
  await page.locator('[data-token="0"]').dblclick();
  await page.getByLabel('The new text').fill(' Lyonesse, of course');
  const { tokens } = await server.post('/tokenize', { prompt: ' Lyonesse, of course', add_special_tokens: false });
  await page.waitForFunction((count) => document.querySelectorAll('dialog .piece i').length === count, tokens.length);
  assert.deepEqual((await page.locator('dialog .piece i').allTextContents()).map(Number), tokens);
  await page.getByRole('button', { name: 'Continue from here' }).click();
  await page.locator('dialog').waitFor({ state: 'detached' });
  const edited = await settled(page, server, before.id);
  assert.equal(edited.reason, 'edited');
  assert.deepEqual(edited.tokens.slice(0, tokens.length).map((token) => token.id), tokens);
});

test('what a what-if says is what then happens', { skip }, async () => {
  const run = await server.make({ prompt: 'Once upon a time there was a', sampling: { temperature: 1.4, seed: 5, max_tokens: 8, logprobs: 20 } });
  await studio({ hash: `#run=${run.id}&at=1` });
  const winner = async (luck) => Number(await page.locator(`[data-luck=${luck}] [data-winner]`).getAttribute('data-winner'));
  for (const temperature of [0, 0.5]) {
    await page.goto(`${server.address}/#run=${run.id}&at=1`);
    await page.locator('[data-luck=same] [data-winner]').waitFor();
    await page.getByLabel('temperature', { exact: false }).last().fill(String(temperature));
    const expected = (await server.get(`/api/runs/${run.id}/explain/1?temperature=${temperature}`)).winner.id;
    await page.waitForFunction((id) => document.querySelector('[data-luck=same] [data-winner]')?.dataset.winner === String(id), expected);
    await page.locator('[data-luck=same] button').click();
    const grown = await settled(page, server, run.id);
    assert.equal(grown.tokens[1].id, expected);
    assert.equal(grown.sampling.temperature, temperature);
    await page.evaluate(() => (location.hash = ''));
  }
  await page.goto(`${server.address}/#run=${run.id}&at=2`);
  await page.waitForFunction((id) => document.querySelector('.item.path')?.dataset.run === id, run.id);
  await page.waitForFunction(() => document.querySelector('.item.focused')?.dataset.index === '2');
  const expected = (await server.get(`/api/runs/${run.id}/explain/2?luck=new`)).winner.id;
  await page.waitForFunction((id) => document.querySelector('[data-luck=new] [data-winner]')?.dataset.winner === String(id), expected);
  assert.equal(await winner('new'), expected);
  await page.locator('[data-luck=new] button').click();
  assert.equal((await settled(page, server, run.id)).tokens[2].id, expected);
});

test('where there is no luck, none can be grown', { skip }, async () => {
  const run = await server.make({ prompt: 'The sea is', sampling: { temperature: 0, max_tokens: 4, logprobs: 20 } });
  await studio({ hash: `#run=${run.id}&at=1` });
  await page.getByText('none: the temperature is 0').waitFor();
  assert.ok(await page.locator('[data-luck=new] button').isDisabled());
  await page.locator('body').press('Enter');
  await page.locator('[role=alert]').filter({ hasText: 'made without luck' }).waitFor();
  assert.equal((await current(page, server)).id, run.id);
  await page.getByText('No luck here: the highest logit is first.').waitFor();
});

test('it works by keyboard alone', { skip }, async () => {
  await studio();
  await played(page);
  for (let i = 0; i < 60 && (await page.evaluate(() => document.activeElement?.getAttribute('role'))) !== 'treeitem'; i++) await page.keyboard.press('Tab');
  assert.equal(await page.evaluate(() => document.activeElement.getAttribute('role')), 'treeitem', 'Tab reaches the tree');
  assert.equal(await page.locator('[role=treeitem][tabindex="0"]').count(), 1, 'one item has the focus');
  const before = await current(page, server);
  await page.keyboard.press('Home');
  await page.keyboard.press('ArrowRight');
  await page.waitForFunction(() => document.activeElement?.dataset.index === '1');
  await page.keyboard.press('ArrowDown');
  const id = Number(await page.locator('.item.chosen').getAttribute('data-id'));
  await page.keyboard.press('Enter');
  const fork = await settled(page, server, before.id);
  assert.deepEqual([fork.parent, fork.fork_at, fork.tokens[1].id], [before.id, 1, id]);
  await page.keyboard.press('?');
  assert.equal(await page.locator('dialog kbd').count(), 36);
  await page.keyboard.press('Escape');
  await page.keyboard.press('e');
  await page.getByLabel('The new text').waitFor();
  await page.keyboard.press('Escape');
  await page.keyboard.press('5');
  assert.equal(await page.locator('[role=tab][aria-selected=true]').textContent(), 'Cache & time');
});

test('it fits on a phone', { skip }, async () => {
  await studio({ width: 390, height: 844, hasTouch: true });
  await played(page);
  assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 390);
  const before = await current(page, server);
  await page.locator('.item.alternative').first().tap();
  await settled(page, server, before.id);
  for (const lens of ['2', '3', '4', '5', '7']) await page.keyboard.press(lens);
  assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 390);
});

test('axe finds nothing serious, dark and light, wide and narrow', { skip }, async () => {
  const found = [];
  for (const [scheme, width, lenses] of [['dark', 1280, ['1', '4', '7']], ['light', 390, ['3', '5']]]) {
    await studio({ scheme, width });
    await played(page);
    await page.evaluate(axe);
    const look = async (what) => {
      const { violations } = await page.evaluate(() => axe.run(document, { resultTypes: ['violations'] }));
      for (const each of violations) if (/serious|critical/.test(each.impact)) found.push(`${scheme} ${what}: ${each.id} ${each.nodes[0].html.slice(0, 160)} ${each.nodes[0].failureSummary.slice(0, 200)}`);
    };
    await page.locator('tr.won').first().waitFor();
    for (const lens of lenses) {
      await page.keyboard.press(lens);
      await look(`lens ${lens}`);
    }
    if (width === 1280) {
      await page.keyboard.press('2');
      await page.getByRole('button', { name: 'Search on this prompt' }).click();
      await page.locator('[data-beam]').first().waitFor();
      await look('beams');
    } else if (await page.getByRole('tab', { name: 'Inside' }).count()) {
      await page.keyboard.press('6');
      await page.locator('[data-neighbour]').first().waitFor();
      await look('inside');
    }
    if (width === 1280) {
      await page.keyboard.press('?');
      await look('help');
      await page.context().close();
    } else {
      await page.getByRole('button', { name: 'settings' }).click();
      await look('settings');
    }
  }
  assert.deepEqual(found, []);
});

const NAMED = /^(button|link|textbox|searchbox|checkbox|combobox|slider|spinbutton|tab|treeitem|image|table|tree|dialog|region|form|meter|progressbar|separator)$/;

test('a screen reader finds a name for every control and hears the reason, without dots for spaces', { skip }, async () => {
  const run = await server.make({ prompt: 'The sea is', sampling: { temperature: 0.9, seed: 3, max_tokens: 12, logprobs: 20 } });
  await studio({ hash: `#run=${run.id}&at=4` });
  await page.locator('tr.won[data-candidate]').waitFor();
  const line = await page.context().newCDPSession(page);
  const heard = async () => (await line.send('Accessibility.getFullAXTree')).nodes.filter((node) => !node.ignored).map((node) => ({ role: node.role.value, name: node.name?.value.trim() ?? '' }));
  const check = async (where) => {
    for (const { role, name } of await heard()) {
      assert.ok(name || !NAMED.test(role), `${where}: a ${role} without a name`);
      assert.ok(!/^·/.test(name), `${where}: ${role} ${name}`);
    }
  };
  for (const key of ['1', '2', '3', '4', '5', '6', '7', '8', '9', 'd', 'l', 'x']) {
    await page.keyboard.press(key);
    await check(await page.locator('[role=tab][aria-selected=true]').textContent());
  }
  const all = await heard();
  const token = run.tokens[5];
  assert.ok(all.some(({ role, name }) => role === 'treeitem' && name.includes(`“${token.piece}”, token 5, `) && name.includes(' %')), 'a token tells its probability');
  assert.ok(all.some(({ role, name }) => role === 'button' && name.endsWith(', the winner')), 'the winner is told');
  for (const luck of ['the same', 'new']) assert.ok(all.some(({ name }) => name === `grow it with ${luck} luck`));
  await page.keyboard.press('ArrowRight');
  const { sentence } = await server.get(`/api/runs/${run.id}/explain/5`);
  await page.waitForFunction((text) => document.querySelector('p[role=status]').textContent === text, sentence);
  for (const key of ['?', 'r', 'e']) {
    await page.keyboard.press(key);
    await page.locator('dialog').waitFor();
    await check(`dialog ${key}`);
    await page.keyboard.press('Escape');
    await page.locator('dialog').waitFor({ state: 'detached' });
  }
});

test('hostile tokens are shown and never obeyed', { skip }, async () => {
  const pieces = ['<img src=x onerror="window.hacked=1">', '<script>window.hacked=1</script>', '\u202Egnp.exe', '\u0000\u001b[2J', '{@html x}', '\u200b\u2066', 'javascript:alert(1)'];
  const run = await server.make({ prompt: 'Hi', sampling: { seed: 1, max_tokens: pieces.length, ignore_eos: true, logprobs: 5 } });
  const before = (page) =>
    page.route(`**/api/runs/${run.id}?*`, async (route) => {
      const told = await (await route.fetch()).json();
      told.tokens.forEach((token, i) => {
        token.piece = token.text = pieces[i];
        token.bytes = Buffer.from(pieces[i]).toString('hex');
        for (const each of token.alternatives) each.text = pieces[i];
      });
      told.stop_reason = pieces[0];
      [told.diffusion, told.passes] = [{}, 1];
      return route.fulfill({ json: told });
    });
  await studio({ hash: `#run=${run.id}&at=2`, before });
  await page.locator('[data-token="6"]').waitFor();
  await page.keyboard.press('4');
  await sleep(400);
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.equal(await page.locator('main img, main script').count(), 0);
  const text = await page.locator('section[aria-label="Text"]').textContent();
  assert.ok(text.includes('<img src=x') && text.includes('U+202E') && text.includes('␛'), text);
  const clean = async () => {
    assert.doesNotMatch(await page.locator('main').textContent(), /[\u202a-\u202e\u2066-\u2069\u200b\u0000\u001b]/);
    assert.deepEqual(await page.evaluate(() => [window.hacked, document.querySelectorAll('main img, main script').length]), [undefined, 0]);
  };
  await clean();
  // The same in what a search and an edit tell.
  const path = { number: 0, run: run.id, parent: null, fork_at: null, tokens: 7, confidence: 1, vote: 1, value: pieces[0], ended_by: 'search', why: pieces[2] };
  const record = { method: 'vote', options: {}, seed: 1, rounds: 1, answer: 0, value: pieces[1], votes: Object.fromEntries(pieces.map((piece) => [piece, 1])), usage: { tokens: 7, seconds: 1, branches: 1, prompt_tokens: 1 }, paths: [path], decisions: pieces.map((why) => ({ round: 1, action: 'note', path: null, tokens: null, why })) };
  await page.route(`**/api/runs/${run.id}/search`, (route) => route.fulfill({ json: { search: record } }));
  await page.route(`**/api/runs/${run.id}/search/confidence?*`, (route) => route.fulfill({ json: { window: 32, threshold: null, paths: [{ number: 0, run: run.id, tokens: [1, 2], groups: [1, 2] }] } }));
  await page.keyboard.press('8');
  await page.locator('tr[data-path]').waitFor();
  await clean();
  const proposals = pieces.map((text, number) => ({ step: 0, number, text, old_text: text, own_bits: 1, following_bits: 1, old_own_bits: null, old_following_bits: null, accepted: number === 0, refusal: null, why: '', line: '' }));
  await page.route('**/api/edits/repair', (route) => route.fulfill({ json: { kind: 'repair', before: pieces[0], text: pieces[2], usage: { sampled: 1, scored: 1 }, draft: null, run: null, tree: '', proposals, frames: [{ proposal: null, before: pieces[0], span: '', after: '' }, { proposal: 0, before: pieces[1], span: pieces[2], after: pieces[3] }] } }));
  await page.keyboard.press('9');
  await page.getByRole('button', { name: 'Repair' }).click();
  await page.locator('tr[data-proposal]').nth(6).waitFor();
  await clean();
  const cells = pieces.map((text, id) => ({ text: id % 2 ? text : null, id: id % 2 ? id : null, changed: true, confidence: id % 2 ? 0.5 : null, entropy: 1, raw_logprob: -1, logprob: -1, pass: 0, taken_back: text, reason: text }));
  await page.route(`**/api/runs/${run.id}/passes*`, (route) => route.fulfill({ json: { run: run.id, diffusion: {}, passes: 1, frames: [{ pass: 0, first: 0, cells }], more: false } }));
  await page.keyboard.press('d');
  await page.locator('tr[data-taken="6"]').waitFor();
  await clean();
});

test('the page starts with the model’s own settings, and names each strategy', { skip }, async () => {
  const { options } = await server.get('/api/info');
  const { default: temperature } = options.find((each) => each.name === 'temperature');
  assert.equal(temperature, 0.5);
  await studio();
  await played(page);
  const first = await current(page, server);
  const menu = page.getByLabel('strategy');
  assert.equal(await menu.inputValue(), 'default');
  assert.match(await menu.getAttribute('title'), /^temperature 0\.5: the defaults/);
  await ask(page, 'The lake is', { max_tokens: 2 });
  const plain = await settled(page, server, first.id);
  assert.equal(plain.sampling.temperature, temperature);
  for (const name of ['greedy', 'careful', 'min-p', 'beams', 'default', 'nucleus']) {
    await menu.selectOption(name);
    assert.equal(await menu.inputValue(), name);
  }
  await page.getByRole('button', { name: 'Run', exact: true }).click();
  const { sampling } = await settled(page, server, plain.id);
  assert.deepEqual([sampling.temperature, sampling.top_p], [1, 0.9]);
});

test('wrong settings are refused in words', { skip }, async () => {
  await studio();
  await played(page);
  const made = async () => (await server.get('/api/runs?limit=500')).runs.length;
  const run = () => page.getByRole('button', { name: 'Run', exact: true }).click();
  const notice = page.locator('.notice');
  const before = await made();
  // What the server refuses is said at the field, in the server's own words.
  await set(page, 'temperature', 300);
  await run();
  await notice.filter({ hasText: /Temperature is 300.*expected/ }).waitFor();
  await notice.getByRole('button', { name: 'Open settings' }).click();
  assert.match(await page.locator('#help-temperature').textContent(), /^Temperature is 300.*expected/);
  assert.equal(await page.locator('#option-temperature').getAttribute('aria-invalid'), 'true');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'option-temperature');
  // What is no number is not sent at all, and stays where it was written.
  for (const [name, text, said] of [['temperature', 'warm', /a number is expected/], ['top_k', '1.5', /a whole number is expected/], ['logit_bias', 'x', /ID=VALUE/]]) {
    const field = page.locator(`#option-${name}`);
    await field.fill(text);
    await field.blur();
    assert.match(await page.locator(`#help-${name}`).textContent(), said);
    assert.equal(await field.getAttribute('aria-invalid'), 'true');
    await page.keyboard.press('Escape');
    await run();
    await notice.filter({ hasText: `Nothing was run: ${name} is "${name === 'logit_bias' ? '{x}' : text}"` }).waitFor();
    await page.getByRole('button', { name: 'settings', exact: true }).click();
    assert.equal(await field.inputValue(), text);
    await field.fill('');
    await field.blur();
    assert.equal(await field.getAttribute('aria-invalid'), 'false');
  }
  await page.keyboard.press('Escape');
  const seed = page.locator('input.seed');
  for (const [text, said] of [['abc', /seed is "abc"; a whole number is expected/i], ['-3', /seed is -3; a whole number from 0 to 2\^64 - 1/i], ['18446744073709551616', /seed is 18446744073709551616; a whole number from 0 to 2\^64 - 1/i]]) {
    await seed.fill(text);
    await run();
    await notice.filter({ hasText: said }).waitFor();
    assert.match(await page.locator('#wrong-seed').textContent(), said);
    assert.deepEqual([await seed.getAttribute('aria-invalid'), await seed.inputValue()], ['true', text]);
  }
  await seed.fill('abc');
  await seed.blur();
  await page.keyboard.press('c'); // Compare asks with the same settings
  await notice.filter({ hasText: 'Nothing was run' }).waitFor();
  await page.keyboard.press('2');
  await page.getByLabel('beams').last().fill('many');
  await page.getByRole('button', { name: 'Search on this prompt' }).click();
  assert.match(await page.locator('#wrong-beam_width').textContent(), /a whole number is expected/);
  assert.equal(await made(), before, 'nothing has run');
  const first = await current(page, server);
  await seed.fill('5');
  await run();
  assert.equal((await settled(page, server, first.id)).seed, 5);
  assert.equal(await page.locator('[aria-invalid=true]:visible').count(), 1, 'the beams alone are still wrong');
});

test('a token has the same number on the page, in the link and over HTTP', { skip }, async () => {
  const run = await server.make({ prompt: 'The sea is', sampling: { temperature: 0.9, seed: 3, max_tokens: 9, logprobs: 20 } });
  const at = 4;
  const told = await server.get(`/api/runs/${run.id}/explain/${at}`);
  assert.equal(told.actual.id, run.tokens[at].id);
  await studio({ hash: `#run=${run.id}&at=${at}` });
  await page.waitForFunction((text) => document.querySelector('.sentence')?.textContent === text, told.sentence);
  assert.match(await page.locator('section[aria-label="Why this token"] .token').textContent(), new RegExp(`token ${at} · id ${told.actual.id} `));
  assert.match(await page.locator('.item.focused').getAttribute('aria-label'), new RegExp(`token ${at}\\b`));
  assert.match(await page.locator(`[data-token="${at}"]`).getAttribute('title'), new RegExp(`^token ${at}:`));
  // The reason follows what is spoken, soon or late: everything that is spoken is noted.
  await page.locator('[role=status]').first().evaluate((node) => new MutationObserver(() => (window.spoken ??= []).push(node.textContent)).observe(node, { childList: true, characterData: true, subtree: true }));
  await page.keyboard.press('ArrowRight');
  await page.waitForFunction((begin) => window.spoken?.some((text) => text.startsWith(begin)), `Token ${at + 1}: `);
  await page.keyboard.press('ArrowLeft');
  await page.keyboard.press('4');
  const cells = await page.locator(`tr[data-row="${at}"] td`).allTextContents();
  assert.deepEqual([Number(cells[0]), Number(cells[2])], [at, run.tokens[at].id]);
  await page.keyboard.press('e');
  await page.getByRole('dialog', { name: `Edit token ${at}` }).waitFor();
  await page.keyboard.press('Escape');
  // Where a branch differs is where it was forked.
  await page.locator('.item.alternative').first().click();
  const fork = await settled(page, server, run.id);
  assert.equal(fork.fork_at, at);
  await page.keyboard.press('1');
  assert.equal(await page.locator(`tr[data-run="${fork.id}"] [data-differs]`).textContent(), String(at));
});

test('the tokens of a prompt are shown while one types', { skip }, async () => {
  await studio();
  await played(page);
  const box = page.getByRole('textbox', { name: 'Prompt' });
  const height = () => page.locator('section[aria-label="Prompt"]').evaluate((node) => node.offsetHeight);
  const shown = async (text, special) => {
    const { tokens } = await server.post('/tokenize', { prompt: text, add_special_tokens: special, parse_special_tokens: special });
    await page.waitForFunction((count) => document.querySelector('.typed .count').dataset.count === String(count), tokens.length);
    const ids = (await page.locator('.typed [data-id]').evaluateAll((nodes) => nodes.map((node) => Number(node.dataset.id))));
    assert.deepEqual(ids, tokens.slice(-120));
    assert.equal(await page.locator('.typed [data-place]').last().getAttribute('data-place'), String(tokens.length - 1), 'counted from 0');
    return tokens.length;
  };
  const before = await height();
  const text = 'How do naïve\tstrawberries work? 🎈<|im_end|>';
  await box.fill('');
  assert.equal(await page.locator('.typed .count').textContent(), '0 tokens');
  await box.pressSequentially('How do');
  await box.fill(text);
  await shown(text, true);
  assert.match(await page.locator('.typed').textContent(), / do.*⇥.*<\|im_end\|>/, 'what is invisible is visible');
  assert.equal(await page.locator('.typed .dots').first().evaluate((node) => getComputedStyle(node, '::before').content), '"·" / ""');
  const long = 'on and on '.repeat(400).trim();
  await box.fill(long);
  assert.ok((await shown(long, true)) > 120);
  const end = await page.locator('.typed .line').evaluate((node) => node.scrollLeft + node.clientWidth >= node.scrollWidth - 2);
  assert.ok(end, 'the end is in sight');
  assert.equal(await height(), before, 'nothing on the page moved');
  await page.getByRole('button', { name: 'chat', exact: true }).click();
  await page.getByLabel('Your message').fill('Hi <|im_end|>');
  await shown('Hi <|im_end|>', false);
});

test('what if, compare and the reasons are in sight at 1440 × 900', { skip }, async () => {
  await studio({ width: 1440, height: 900 });
  await played(page);
  await page.keyboard.press('c');
  await page.waitForFunction(() => document.querySelectorAll('#lens tr[data-run]').length === 4 && !/(writing|waiting) …/.test(document.querySelector('#lens table').textContent));
  await page.locator('[data-luck=same] [data-winner]').waitFor();
  const foot = (await page.locator('footer').boundingBox()).y;
  for (const each of ['#lens tr[data-run] >> nth=1', '[data-luck=same]', '[data-luck=new]', 'tr.won[data-candidate]', '.item.focused', '.sentence']) {
    const { y, height } = await page.locator(each).first().boundingBox();
    assert.ok(y > 0 && y + height <= foot, `${each} is from ${y} to ${y + height}, the footer at ${foot}`);
  }
  assert.ok(await page.evaluate(() => document.documentElement.scrollHeight <= innerHeight), 'nothing is below');
  assert.deepEqual(await page.evaluate(() => [...document.querySelectorAll('header, main')].flatMap((node) => node.textContent.match(/[⏮⏸▶⑂☀☾✕⚠ⓘ✂]/gu) ?? [])), [], 'no sign that fonts lack');
});

/** Nothing serious in one part of the page. */
const PANELS = ['Text', 'Token tree', 'Why this token', 'Lenses'];
const boxOf = (name) => page.locator(`section[aria-label="${name}"]`).boundingBox();

test('text, tree, reasons and a lens are in sight together, without scrolling the page', { skip }, async () => {
  for (const [width, height] of [[1440, 900], [1280, 720]]) {
    await page?.context().close();
    await studio({ width, height });
    await played(page);
    const foot = (await page.locator('footer').boundingBox()).y;
    for (const name of PANELS) {
      const { x, y, width: wide, height: high } = await boxOf(name);
      assert.ok(x >= 0 && x + wide <= width && y > 0 && y + high <= foot && high >= 100, `${name} at ${width} × ${height}: ${x}, ${y}, ${wide} × ${high}`);
    }
    assert.deepEqual(await page.evaluate(() => [document.documentElement.scrollHeight, document.documentElement.scrollWidth]), [height, width]);
    assert.equal(await page.evaluate(() => document.querySelector('main').scrollHeight - document.querySelector('main').clientHeight), 0);
    assert.ok((await page.locator('.item.also').count()) > 8, 'the tokens in sight have their alternatives');
  }
});

test('the token that the page explains is in sight in the text, however it was selected', { skip }, async () => {
  await studio({ width: 1280, height: 720 });
  await played(page);
  const demo = await settled(page, server);
  const text = page.getByRole('region', { name: 'The text, token by token' });
  // The text, the tree and the reasons are about the same token, and the text shows it.
  const shows = (index) =>
    page.waitForFunction((wanted) => {
      const [token, item] = [document.querySelector('.text .token.focused, .text .token.pinned'), document.querySelector('.item.focused')];
      if (!token || !item || token.dataset.token !== item.dataset.index || (wanted !== null && token.dataset.token !== String(wanted))) return false;
      if (!document.querySelector('.reasons').textContent.includes(`token ${token.dataset.token} `)) return false;
      const [box, { top, bottom }] = [token.closest('.text').getBoundingClientRect(), token.getBoundingClientRect()];
      return top >= box.top && bottom <= box.bottom;
    }, index);
  const scrollAway = async () => {
    await text.evaluate((node) => (node.scrollTop = node.scrollHeight));
    await page.waitForFunction(() => document.querySelector('.text .token.pinned, .text .token.focused') === null);
  };
  await ask(page, 'Once upon a time', { seed: 2, max_tokens: 160 });
  const run = await settled(page, server, demo.id);
  assert.ok(await text.evaluate((node) => node.scrollHeight > 3 * node.clientHeight), 'the text is longer than its panel');
  await shows(null);
  assert.ok(Number(await page.locator('.text .token.focused').getAttribute('data-token')) < run.tokens.length / 2, 'not at the end, to which the text was scrolled');
  await page.keyboard.press('Escape'); // leave the prompt box
  await text.focus();
  await page.keyboard.press('End');
  await shows(run.end ? run.tokens.length : run.tokens.length - 1);
  await page.keyboard.press('Home');
  await shows(0);
  await scrollAway();
  await page.locator('.item.focused[data-index="0"]').click(); // which is selected already
  await shows(0);
  await page.getByRole('tab', { name: 'Tokens', exact: true }).click();
  await page.locator('#lens tbody button').nth(8).click();
  await shows(8);
  await page.locator('.spark').click({ position: { x: 300, y: 12 } });
  await page.waitForFunction(() => Number(document.querySelector('.item.focused')?.dataset.index) > 20);
  await shows(null);
  await page.getByRole('button', { name: 'Collapse the text' }).click();
  await page.getByRole('button', { name: 'Expand the text' }).click();
  await shows(null);
  await page.goto(`${server.address}/#run=${run.id}&at=90`);
  await shows(90);
  await page.reload();
  await shows(90);
});

test('while a text is written one can read its beginning', { skip }, async () => {
  await studio({ width: 1280, height: 720 });
  await played(page);
  await page.getByRole('button', { name: 'settings' }).click();
  await page.locator('#option-ignore_eos').check();
  await page.keyboard.press('Escape');
  await ask(page, 'A long story about a fox:', { seed: 21, max_tokens: 1000 });
  // Returns the number of tokens once it is larger, and where the text is scrolled to.
  const more = async (than) => {
    const found = await page.waitForFunction((least) => {
      const count = Number(/^writing … ([\d,]+) token/.exec(document.querySelector('.state').textContent.trim())?.[1].replace(',', ''));
      return count > least && [count, document.querySelector('.text').scrollTop];
    }, than, { timeout: 60_000 });
    return found.jsonValue();
  };
  const [count, followed] = await more(60);
  assert.ok(followed > 0, 'the text follows what is written');
  const text = page.getByRole('region', { name: 'The text, token by token' });
  await text.evaluate((node) => (node.scrollTop = 0));
  const [later, at] = await more(count + 30);
  assert.equal(at, 0);
  await text.evaluate((node) => (node.scrollTop = node.scrollHeight)); // back to the end: it follows again
  const [, there] = await more(later + 30);
  assert.ok(there > followed);
  await server.post(`/api/runs/${(await current(page, server)).id}/stop`, {});
});

test('panels are resized with the mouse and the keyboard, collapsed, enlarged, and remembered', { skip }, async () => {
  await studio();
  await played(page);
  const heights = async () => Object.fromEntries(await Promise.all(PANELS.map(async (name) => [name, (await boxOf(name)).height])));
  const before = await heights();
  const border = page.getByRole('separator', { name: 'Height of the token tree' });
  const { x, y, width, height } = await border.boundingBox();
  await page.mouse.move(x + width / 2, y + height / 2);
  await page.mouse.down();
  await page.mouse.move(x + width / 2, y + height / 2 - 60, { steps: 3 });
  await page.mouse.up();
  const dragged = await heights();
  assert.ok(Math.abs(dragged['Token tree'] - before['Token tree'] + 60) < 3 && Math.abs(dragged['Lenses'] - before['Lenses'] - 60) < 3, JSON.stringify([before, dragged]));
  assert.ok(Math.abs(dragged['Text'] - before['Text']) < 2);
  const side = page.getByRole('separator', { name: /Width of/ });
  const wide = (await boxOf('Why this token')).width;
  await side.focus();
  await page.keyboard.press('ArrowLeft');
  assert.ok(Math.abs((await boxOf('Why this token')).width - wide - 24) < 3);
  assert.equal(Number(await side.getAttribute('aria-valuenow')), Math.round(wide + 24));
  await page.getByRole('button', { name: 'Collapse the text' }).click();
  assert.ok((await boxOf('Text')).height < 40);
  await page.reload();
  await settled(page, server);
  assert.ok((await boxOf('Text')).height < 40, 'still collapsed');
  assert.ok(Math.abs((await boxOf('Why this token')).width - wide - 24) < 3, 'still as wide');
  await page.getByRole('button', { name: 'Expand the text' }).click();
  assert.ok(Math.abs((await heights())['Lenses'] - dragged['Lenses']) < 3, 'as it was before');
  await page.keyboard.press('f');
  assert.ok((await boxOf('Lenses')).width > 1200 && !(await page.locator('section[aria-label="Text"]').isVisible()));
  await page.keyboard.press('Escape');
  assert.ok(await page.locator('section[aria-label="Text"]').isVisible());
  await border.dblclick();
  assert.ok(Math.abs((await heights())['Lenses'] - before['Lenses']) < 3, 'a double click restores the sizes');
});

test('the tree is zoomed and panned, and an alternative of any token in sight forks', { skip }, async () => {
  const run = await server.make({ prompt: 'Once upon a time', sampling: { seed: 2, max_tokens: 60, ignore_eos: true, logprobs: 20 } });
  await studio({ hash: `#run=${run.id}&at=20` });
  await page.locator('.item.focused[data-index="20"]').waitFor();
  const tree = page.locator('.tree');
  const scrolled = () => tree.evaluate((node) => node.scrollLeft);
  // It glides to the token in focus.
  for (let last = -1, now = 0, looks = 0; (now !== last || now <= 100) && looks < 50; looks++) {
    [last, now] = [now, await scrolled()];
    await page.waitForTimeout(100);
  }
  const wide = async () => (await page.locator('.item.focused').boundingBox()).width;
  const before = await wide();
  await page.keyboard.press('-');
  await page.waitForFunction((width) => document.querySelector('.item.focused').getBoundingClientRect().width < 0.9 * width, before);
  await page.keyboard.press('0');
  await page.waitForFunction((width) => Math.abs(document.querySelector('.item.focused').getBoundingClientRect().width - width) < 1, before);
  const from = await scrolled();
  assert.ok(from > 100);
  const { x, y, width, height } = await tree.boundingBox();
  await page.mouse.move(x + width - 30, y + height - 6);
  await page.mouse.down();
  await page.mouse.move(x + width + 50, y + height - 6, { steps: 4 });
  await page.mouse.up();
  assert.equal(await scrolled(), from - 80);
  const also = page.locator('.item.also').first();
  const [id, index] = [Number(await also.getAttribute('data-id')), Number(await also.getAttribute('data-index'))];
  assert.notEqual(index, 20);
  assert.match(await also.getAttribute('aria-label'), /^Alternative “.*”, .* %. Fork$/);
  await also.click();
  const fork = await settled(page, server, run.id);
  assert.deepEqual([fork.parent, fork.fork_at, fork.tokens[index].id], [run.id, index, id]);
});
