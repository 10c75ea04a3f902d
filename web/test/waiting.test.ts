import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { Waiting } from '../src/lib/waiting';

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

it('a server is slow while an answer has been missing for a second', async () => {
  const counts: number[] = [];
  const waiting = new Waiting((count) => counts.push(count));
  const answer = (milliseconds: number): Promise<string> => waiting.during(new Promise((resolve) => setTimeout(() => resolve('here'), milliseconds)));
  const all = Promise.all([answer(900), answer(1500), answer(3000)]);
  await vi.advanceTimersByTimeAsync(950);
  expect(counts).toEqual([]);
  await vi.advanceTimersByTimeAsync(3000);
  expect(await all).toEqual(['here', 'here', 'here']);
  expect(counts).toEqual([1, 2, 1, 0]);
});

it('an answer that fails late ends the wait too', async () => {
  const counts: number[] = [];
  const failing = new Waiting((count) => counts.push(count)).during(new Promise((_, reject) => setTimeout(() => reject(new Error('gone')), 2000)));
  const told = expect(failing).rejects.toThrow('gone');
  await vi.advanceTimersByTimeAsync(2000);
  await told;
  expect(counts).toEqual([1, 0]);
});
