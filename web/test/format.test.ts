import { describe, expect, it } from 'vitest';
import { ago, bytes, count, decimal, ending, endWord, percent, plural, seconds, share, signed } from '../src/lib/format';
import { heat, surprise, tint, uncertain, underline } from '../src/lib/heat';
import { Sentences } from '../src/lib/speech';
import { spark, sampled } from '../src/lib/spark';
import { stretches } from '../src/lib/temperatures';
import { suggest } from '../src/lib/suggest';
import { inSight, lineOf, Lines, type Line } from '../src/lib/wrap';
import { explanation, run } from './recorded';

describe('numbers', () => {
  it('are the engine’s, rounded', () => {
    const told = explanation();
    for (const each of told.candidates) expect(parseFloat(percent(each.raw_logprob))).toBeCloseTo(100 * Math.exp(each.raw_logprob), 1);
    const sum = told.candidates.reduce((total, each) => total + Math.exp(each.raw_logprob), told.others.raw);
    expect(sum).toBeCloseTo(1, 6); // the row of all others makes it one
    expect(percent(null)).toBe('removed');
  });
  it('never round to certainty', () => {
    expect(share(0.99999)).toBe('>99.9 %');
    expect(share(1)).toBe('100 %');
    expect(share(1e-12)).toBe('≈0 %');
    expect(share(0)).toBe('0 %');
    expect(share(0.00012)).toBe('0.01 %');
  });
  it('have their signs and units', () => {
    expect([signed(-1.005), signed(2), decimal(-3.14159), decimal(null)]).toEqual(['−1.00', '+2.00', '−3.14', '∞']);
    expect([plural(1, 'token'), plural(2000, 'token')]).toEqual(['1 token', '2,000 tokens']);
    expect([count(49152), seconds(0.00712), seconds(0.25), seconds(3.3), seconds(75)]).toEqual(['49,152', '7.1 ms', '250 ms', '3.30 s', '75.0 s']);
    expect([0, 1023, 9.5 * 2 ** 10, 737_280, 348_733_440, 2 ** 32].map(bytes)).toEqual(['0 B', '1023 B', '9.5 KB', '720 KB', '333 MB', '4.0 GB']);
  });
  it('tell how long ago something was', () => {
    expect([0.2, 40, 300, 7200, 400_000].map(ago)).toEqual(['just now', '40 s ago', '5 min ago', '2 h ago', '5 days ago']);
  });
  it('come with a sentence about the end', () => {
    expect(ending('stop', '<|im_end|>')).toBe('It ended with "<|im_end|>".');
    expect(ending('length', 'max_tokens')).toContain('the token limit');
    expect(ending('error', 'boom')).toBe('It failed: boom.');
    expect([endWord('length'), endWord('stop'), endWord('error')]).toEqual(['token limit', 'ended', 'failed']);
  });
});

describe('the tint', () => {
  it('is not there where the model was sure, and grows with surprise', () => {
    expect(tint(-0.5)).toBe('transparent');
    expect(underline(-0.5)).toBe(0);
    expect([surprise(-1), surprise(-3), surprise(-9)]).toEqual([...[surprise(-1), surprise(-3), surprise(-9)]].sort((a, b) => a - b));
    expect([underline(-1.5), underline(-4), underline(-8)]).toEqual([1, 2, 3]);
    expect(heat(1)).toBe('rgb(254, 232, 56)');
    expect(tint(null)).toMatch(/^rgba\(254, 232, 56/);
  });
  it('leads from one uncertain token to the next', () => {
    expect([uncertain([0, 3, 0, 4], -1, 1), uncertain([0, 3, 0, 4], 1, 1), uncertain([0, 3, 0, 4], 3, -1), uncertain([0], 0, 1)]).toEqual([1, 3, 1, null]);
  });
});

describe('lines', () => {
  function wrap(widths: number[], ends: boolean[], room: number): Line[] {
    const lines = new Lines(room);
    widths.forEach((width, i) => lines.add(width, ends[i]!));
    return lines.all;
  }
  it('hold every token once, and never more than fits', () => {
    const widths = Array.from({ length: 500 }, (_, i) => 10 + ((i * 37) % 80));
    const lines = wrap(widths, widths.map((_, i) => i % 90 === 89), 400);
    expect(lines.reduce((sum, line) => sum + line.count, 0)).toBe(500);
    for (const { first, count } of lines) expect(widths.slice(first, first + count).reduce((a, b) => a + b)).toBeLessThanOrEqual(400);
    for (const token of [0, 89, 90, 499]) {
      const { first, count } = lines[lineOf(lines, token)]!;
      expect(token >= first && token < first + count).toBe(true);
    }
    expect(wrap([500], [false], 400)).toEqual([{ first: 0, count: 1 }]);
  });
  it('in sight are few, however many there are', () => {
    expect(inSight(30_000, 120, 30, 5000, 3)).toEqual({ from: 997, to: 1007 });
  });
});

it('the entropy line keeps its peaks', () => {
  const values = Array.from({ length: 2000 }, (_, i) => (i === 1234 ? 9 : 1));
  expect(sampled(values, 200)).toHaveLength(200);
  expect(sampled(values, 200)).toContainEqual([1234, 9]);
  const drawn = spark(values, 200, 30);
  expect(drawn.token(drawn.x(1234))).toBe(1234);
  expect(spark([], 200, 30).line).toBe('');
});

it('speaks in sentences', () => {
  const sentences = new Sentences();
  expect(run().tokens.flatMap((token) => sentences.feed(token.text))[0]).toBe('Paris.');
  expect(sentences.finish()).not.toBe('');
});

it('suggests the branch that was most nearly taken', () => {
  const found = suggest(run().tokens)!;
  const token = run().tokens[found.index]!;
  expect(token.alternatives).toContainEqual(found.alternative);
  expect(found.alternative.id).not.toBe(token.id);
  expect(suggest([])).toBeNull();
});

it('joins temperatures with the same winner', () => {
  const winners = [1, 1, 2, 1].map((id, place) => ({ temperature: place / 5, id, text: String(id) }));
  expect(stretches(winners).map(({ from, to, count, id }) => [from, to, count, id])).toEqual([[0, 0.2, 2, 1], [0.4, 0.4, 1, 2], [0.6, 0.6, 1, 1]]);
  expect(stretches([])).toEqual([]);
});
