import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { gzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';

const folder = new URL('../../src/glassloop/server/static/', import.meta.url);

describe.skipIf(!existsSync(new URL('index.html', folder)))('the built page', () => {
  const files = ['index.html', ...readdirSync(new URL('assets/', folder)).map((name) => `assets/${name}`)];
  const text = (name: string): string => readFileSync(new URL(name, folder), 'utf8');
  const size = (names: string[]): number => names.reduce((sum, name) => sum + gzipSync(readFileSync(new URL(name, folder))).length, 0);
  const isFont = (name: string): boolean => name.endsWith('.woff2');
  it('is under 150 KB, gzipped, and its two fonts under 100 KB', () => {
    expect(size(files.filter((name) => !isFont(name)))).toBeLessThan(150_000);
    expect(files.filter(isFont)).toHaveLength(2);
    expect(size(files.filter(isFont))).toBeLessThan(100_000);
  });
  it('asks nobody but its own server', () => {
    for (const name of files.filter((name) => !isFont(name))) for (const [address] of text(name).matchAll(/https?:\/\/[^\s"'`)]+/g)) expect(address).toMatch(/^http:\/\/www\.w3\.org\/|^https:\/\/svelte\.dev\/e\//);
  });
});
it('never writes a text as markup', () => {
  const sources = readdirSync(new URL('../src/', import.meta.url), { recursive: true, encoding: 'utf8' }).filter((name) => /\.(svelte|ts)$/.test(name));
  expect(sources.length).toBeGreaterThan(30);
  for (const name of sources) expect(readFileSync(new URL(`../src/${name}`, import.meta.url), 'utf8')).not.toMatch(/\{@html|innerHTML|outerHTML|insertAdjacentHTML|document\.write|Math\.random/);
});

it('draws every sign: no text of the page is a sign that a font may lack', () => {
  const shown = readdirSync(new URL('../src/', import.meta.url), { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.svelte'));
  for (const name of shown) expect(readFileSync(new URL(`../src/${name}`, import.meta.url), 'utf8')).not.toMatch(/[\u2190-\u21ff\u2300-\u24ff\u2580-\u27bf\u2900-\u2bff\ud83c-\ud83e]/u);
});
