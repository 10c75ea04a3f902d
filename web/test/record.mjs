// Records what the real engine says, for the unit tests:  node test/record.mjs http://127.0.0.1:8000
import { mkdir, writeFile } from 'node:fs/promises';

const server = process.argv[2] ?? 'http://127.0.0.1:8000';
const folder = new URL('./data/', import.meta.url);
const get = async (path) => (await fetch(server + path)).json();
const post = async (path, body) =>
  (await fetch(server + path, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) })).json();
const finished = async (tree) => (await fetch(`${server}/api/trees/${tree}/events?close=true`)).text();
const save = (name, value) => writeFile(new URL(name, folder), typeof value === 'string' ? value : `${JSON.stringify(value, null, 1)}\n`);

await mkdir(folder, { recursive: true });
const sampling = { temperature: 0.8, top_k: 40, seed: 7, max_tokens: 12, logprobs: 5 };
const [first] = (await post('/api/runs', { prompt: 'The capital of France is', sampling })).runs;
await finished(first.tree);
const run = await get(`/api/runs/${first.id}?alternatives=5`);
const other = run.tokens[2].alternatives.find((each) => each.id !== run.tokens[2].id);
const [fork] = (await post(`/api/runs/${first.id}/fork`, { at: 2, token: other.id })).runs;
await save('events.txt', await finished(first.tree));
await save('run.json', await get(`/api/runs/${first.id}?alternatives=5`));
await save('fork.json', await get(`/api/runs/${fork.id}?alternatives=5`));
await save('explain.json', await get(`/api/runs/${first.id}/explain/2`));
await save('info.json', await get('/api/info'));
// Guesses are made where they pay, and luck decides whether they are right: until one is and one is not.
for (let seed = 1, drafts; !drafts; seed++) {
  const counting = { prompt: 'One two three four five. One two three four five. One two three', sampling: { temperature: 0.9, seed, max_tokens: 16, logprobs: 3 } };
  const [made] = (await post('/api/runs', counting)).runs;
  await finished(made.tree);
  const { tokens, ...rest } = await get(`/api/runs/${made.id}?alternatives=3`);
  if (tokens.some((token) => token.source === 'draft') && tokens.some((token) => token.refused)) await save('drafts.json', (drafts = { ...rest, tokens }));
}
const [beams] = (await post('/api/runs', { prompt: 'The capital of France is', sampling: { beam_width: 3, max_tokens: 6, logprobs: 3 } })).runs;
await finished(beams.tree);
await save('beams.json', await get(`/api/runs/${beams.id}?alternatives=3`));
// A text that is filled in passes, with tokens that are taken back: its events, and its passes as they are read later.
const filling = { prompt: 'The old man sat down and', sampling: { seed: 7, max_tokens: 12, logprobs: 2 }, diffusion: { block: 6, passes: 3, revise: 1 } };
const [filled] = (await post('/api/runs', filling)).runs;
await save('passes.txt', await finished(filled.tree));
await save('passes.json', await get(`/api/runs/${filled.id}/passes`));
