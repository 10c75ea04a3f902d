import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { gzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';

const folder = new URL('../../src/glassloop/server/static/', import.meta.url);

describe.skipIf(!existsSync(new URL('index.html', folder)))('the built page', () => {
  const files = ['index.html', ...readdirSync(new URL('assets/', folder)).map((name) => `assets/${name}`)];
  const text = (name: string): string => readFileSync(new URL(name, folder), 'utf8');
  it('is under 150 KB, gzipped', () => {
    const size = files.reduce((sum, name) => sum + gzipSync(text(name)).length, 0);
    expect(size).toBeLessThan(150_000);
  });
  it('asks nobody but its own server', () => {
    for (const name of files) for (const [address] of text(name).matchAll(/https?:\/\/[^\s"'`)]+/g)) expect(address).toMatch(/^http:\/\/www\.w3\.org\/|^https:\/\/svelte\.dev\/e\//);
  });
});
it('never writes a text as markup', () => {
  const sources = readdirSync(new URL('../src/', import.meta.url), { recursive: true, encoding: 'utf8' }).filter((name) => /\.(svelte|ts)$/.test(name));
  expect(sources.length).toBeGreaterThan(30);
  for (const name of sources) expect(readFileSync(new URL(`../src/${name}`, import.meta.url), 'utf8')).not.toMatch(/\{@html|innerHTML|outerHTML|insertAdjacentHTML|document\.write|Math\.random/);
});
