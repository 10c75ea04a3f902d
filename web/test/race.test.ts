import { describe, expect, it } from 'vitest';
import { perToken } from '../src/lib/compare';
import { raceOf } from '../src/lib/race';
import type { Explanation } from '../src/lib/types';
import { explanation } from './recorded';

const stage = (name: string, kind: 'bias' | 'scale' | 'mask', moved_count: number) => ({ ...explanation().stages[0]!, name, kind, moved_count });
/** An explanation whose candidates have the logits of this temperature. */
const told = (temperature: number, change: Partial<Explanation> = {}): Explanation => {
  const made = explanation();
  const candidates = made.candidates.map((each) => ({ ...each, raw_logit: each.logit === null ? null : each.logit * (temperature || 1) }));
  return { ...made, candidates, sampling: { ...made.sampling, temperature }, stages: temperature === 1 || temperature === 0 ? [] : [stage('temperature', 'scale', 9)], ...change };
};

describe('the race', () => {
  it('is logit ÷ temperature + luck = score where the temperature alone changes the logits', () => {
    const { racers, scaled, lucky, sum } = raceOf(told(0.5, { stages: [stage('temperature', 'scale', 9), stage('top_p', 'mask', 0)] }));
    expect([scaled, lucky, sum]).toEqual(['÷ 0.5', true, 'logit ÷ temperature + luck = score; the highest score wins.']);
    for (const { raw_logit, luck, score } of racers) expect(raw_logit! / 0.5 + luck).toBeCloseTo(score!, 6);
  });
  it('names the stages where others change them too', () => {
    const { scaled, sum } = raceOf(told(0.5, { stages: [stage('frequency_penalty', 'bias', 1), stage('temperature', 'scale', 9)] }));
    expect([scaled, sum]).toEqual(['after stages', 'logit after frequency_penalty, temperature + luck = score; the highest score wins.']);
  });
  it('needs no second column at temperature 1, and has no luck at 0', () => {
    expect(raceOf(told(1)).scaled).toBeNull();
    expect(raceOf(told(1)).sum).toBe('logit + luck = score; the highest score wins.');
    expect(raceOf(told(0)).lucky).toBe(false);
    expect(raceOf(told(1, { source: 'beam' })).lucky).toBe(false);
  });
});

it('texts of different lengths are compared per token', () => {
  const of = (logprob: number | null, count: number) => perToken({ summary: { logprob }, tokens: Array.from({ length: count }) } as never);
  expect([of(-12, 24), of(-12, 16), of(null, 3), of(0, 0)]).toEqual([-0.5, -0.75, null, null]);
});
