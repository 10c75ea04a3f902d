import { describe, expect, it } from 'vitest';
import { Forest } from '../src/lib/forest';
import { parse, stringify, whole } from '../src/lib/json';
import { fromHash, recipeOf, toHash } from '../src/lib/link';
import { changed, read } from '../src/lib/options';
import type { WholeRun } from '../src/lib/types';
import { eventText, info, run } from './recorded';

const SEED = '18446744073709551557';

describe('JSON', () => {
  it('keeps a long number to the last digit, and back', () => {
    for (const text of [`{"seed":${SEED},"luck":-0.1234567890123456}`, `[${SEED},-${SEED},9007199254740993]`, SEED]) expect(stringify(parse(text))).toBe(text);
    expect(parse(`{"seed": ${SEED} }`)).toEqual({ seed: BigInt(SEED) });
    expect(parse('{"seed":9007199254740991}')).toEqual({ seed: 9007199254740991 });
  });
  it('leaves texts alone, whatever is in them', () => {
    for (const piece of [SEED, `:${SEED},`, `\\"a\\":${SEED},`, `"seed":${SEED}}`, `#${SEED}`, `##`, '\\', '"']) {
      const told = { piece, seed: BigInt(SEED), [piece]: [piece] };
      expect(parse(stringify(told))).toEqual(told);
    }
  });
  it('is as before where no number is long', () => {
    for (const block of eventText.split('\n').filter((line) => line.startsWith('data: '))) {
      const text = block.slice(6);
      expect(stringify(parse(text))).toBe(JSON.stringify(JSON.parse(text)));
    }
    expect(stringify({ a: undefined, b: null, c: [undefined, true] })).toBe('{"b":null,"c":[null,true]}');
  });
  it('tells whole numbers from others', () => {
    expect([whole('7'), whole(SEED), whole('1.5'), whole(''), whole('x'), whole('1e3')]).toEqual([7, BigInt(SEED), null, null, null, 1000]);
  });
});

describe('a seed beyond 53 bits', () => {
  const { options } = info();
  const option = options.find((each) => each.name === 'seed')!;

  it('is read from a form', () => {
    expect(read(option, SEED)).toBe(BigInt(SEED));
    expect(changed({ seed: BigInt(SEED) }, options)).toEqual({ seed: BigInt(SEED) });
  });
  it('is in the link, and comes out of it', () => {
    const forest = new Forest();
    const told = parse(stringify(run()).replace(/"seed":\d+/g, `"seed":${SEED}`)) as WholeRun;
    const { recipe } = fromHash(toHash({ run: told.id, at: 2, recipe: recipeOf(forest.whole(told), forest.runs, options) }));
    expect(recipe!.sampling['seed']).toBe(BigInt(SEED));
  });
});

describe('what another engine did not tell', () => {
  it('becomes NaN in a token, its alternatives and an explanation, and stays null elsewhere', () => {
    const token = parse('{"rank":null,"logprob":null,"raw_logprob":-1,"margin":null,"runner_up":null,"alternatives":[{"logprob":null,"raw_logprob":-1}]}') as Record<string, never>;
    expect(token).toEqual({ rank: NaN, logprob: NaN, raw_logprob: -1, margin: NaN, runner_up: null, alternatives: [{ logprob: NaN, raw_logprob: -1 }] });
    const told = parse('{"upstream":"vllm","margin":null,"others":{"count":null,"raw":0.1,"after":null},"candidates":[{"rank":null,"luck":null}]}');
    expect(told).toEqual({ upstream: 'vllm', margin: NaN, others: { count: NaN, raw: 0.1, after: NaN }, candidates: [{ rank: NaN, luck: NaN }] });
    expect(parse('{"rank":2,"logprob":null,"margin":null}')).toEqual({ rank: 2, logprob: null, margin: null });
  });
});
