// The fields of Sampling as a form. The server tells which fields there are, their kinds and their help texts.

import { parse, stringify, whole } from './json';
import type { Option, Options } from './types';

/** Returns the value of a field's text as the server expects it; undefined for the default. Throws if it is none. */
export function read(option: Option, text: string | boolean): unknown {
  if (typeof text === 'boolean') return text === option.default ? undefined : text;
  const given = text.trim();
  if (given === '') return undefined;
  switch (option.kind) {
    case 'number':
    case 'whole': {
      const value = option.kind === 'whole' ? whole(given) : Number(given);
      if (value === null || (typeof value === 'number' && !Number.isFinite(value))) throw new Error(`${option.name} is "${given}"; a ${option.kind === 'whole' ? 'whole ' : ''}number is expected`);
      // The server takes a seed of -1 as none, for other clients; in this form an empty field means none.
      if (option.name === 'seed' && value < 0) throw new Error(`seed is ${given}; a whole number from 0 to 2^64 - 1 is expected`);
      return value === option.default ? undefined : value;
    }
    case 'texts': return text.split('\n').filter((line) => line !== '').map(unescaped);
    case 'ids': return json(option, `[${given.replace(/^\[|\]$/g, '')}]`);
    case 'biases': return json(option, given.startsWith('{') ? given : `{${given.replace(/(\d+)\s*[=:]\s*/g, '"$1":')}}`);
    case 'schema':
    case 'stage_options': return json(option, given);
    default: return text;
  }
}

/** Returns a value as the text of its field: the inverse of `read`. */
export function write(option: Option, value: unknown): string {
  if (value === null || value === undefined) return '';
  if (option.kind === 'texts' && Array.isArray(value)) return value.map((each) => String(each).replace(/\\/g, '\\\\').replace(/\n/g, '\\n')).join('\n');
  if (option.kind === 'ids' && Array.isArray(value)) return value.join(', ');
  if (typeof value === 'object') return Object.keys(value).length ? stringify(value) : '';
  return String(value);
}

function unescaped(line: string): string {
  return line.replace(/\\(\\|n|t)/g, (_, what: string) => (what === 'n' ? '\n' : what === 't' ? '\t' : '\\'));
}

function json(option: Option, text: string): unknown {
  try {
    return parse(text);
  } catch {
    throw new Error(`${option.name} is "${text}"; ${option.kind === 'biases' ? 'ID=VALUE, ID=VALUE' : 'JSON'} is expected`);
  }
}

/** Returns the value that an option has if the request does not give it. */
export const defaultOf = (name: string, options: readonly Option[]): unknown => options.find((each) => each.name === name)?.default;

/** Returns the options that differ from the defaults. */
export function changed(sampling: Options, options: readonly Option[]): Options {
  const made: Options = {};
  for (const option of options) {
    const value = sampling[option.name];
    if (value !== undefined && stringify(value) !== stringify(option.default)) made[option.name] = value;
  }
  return made;
}

export const GROUPS: readonly { title: string; first: string }[] = [
  { title: 'The distribution', first: 'temperature' },
  { title: 'Repetition', first: 'repetition_penalty' },
  { title: 'Allowed tokens', first: 'logit_bias' },
  { title: 'Seed and samples', first: 'seed' },
  { title: 'Stopping', first: 'max_tokens' },
  { title: 'Beams', first: 'beam_width' },
  { title: 'Structured output', first: 'json_schema' },
  { title: 'Records and order of stages', first: 'logprobs' },
];

export function grouped(options: readonly Option[]): { title: string; options: Option[] }[] {
  const made: { title: string; options: Option[] }[] = [];
  for (const option of options) {
    const title = GROUPS.find((each) => each.first === option.name)?.title;
    if (title !== undefined || made.length === 0) made.push({ title: title ?? 'Options', options: [] });
    made.at(-1)!.options.push(option);
  }
  return made;
}

export interface Slider {
  name: string;
  least: number;
  most: number;
  step: number;
}

/** The sliders of the what-if panel with their ranges. The server computes the answers. */
export const SLIDERS: readonly Slider[] = [
  { name: 'temperature', least: 0, most: 2, step: 0.05 },
  { name: 'top_k', least: 0, most: 100, step: 1 },
  { name: 'top_p', least: 0.05, most: 1, step: 0.05 },
  { name: 'min_p', least: 0, most: 0.5, step: 0.01 },
  { name: 'repetition_penalty', least: 1, most: 2, step: 0.05 },
];

export interface Strategy {
  name: string;
  sampling: Options;
  about: string;
}

export const STRATEGIES: readonly Strategy[] = [
  { name: 'greedy', sampling: { temperature: 0 }, about: 'temperature 0: always the most likely token' },
  { name: 'careful', sampling: { temperature: 0.5, top_p: 0.9 }, about: 'temperature 0.5, top-p 0.9' },
  { name: 'nucleus', sampling: { temperature: 1, top_p: 0.9 }, about: 'temperature 1, top-p 0.9' },
  { name: 'min-p', sampling: { temperature: 1.2, min_p: 0.1 }, about: 'temperature 1.2, min-p 0.1' },
  { name: 'wild', sampling: { temperature: 1.5 }, about: 'temperature 1.5' },
  { name: 'beams', sampling: { beam_width: 4 }, about: '4 beams: the most likely text as a whole' },
];

const FILTERS = ['top_k', 'top_p', 'min_p'] as const;

/** The strategy with which the page starts: the server's defaults, which are the model's own settings if it has any. */
export function defaultStrategy(options: readonly Option[]): Strategy {
  const filters = FILTERS.map((name) => [name, defaultOf(name, options)] as const).filter(([name, value]) => value !== (name === 'top_p' ? 1 : 0));
  const settings = [['temperature', defaultOf('temperature', options)] as const, ...filters].map(([name, value]) => `${name.replace('_', '-')} ${String(value)}`);
  return { name: 'default', sampling: {}, about: `${settings.join(', ')}: the defaults of the server for this model` };
}

/** Returns the strategy that these settings are, if they are one. */
export function strategyOf(sampling: Options, strategies: readonly Strategy[], options: readonly Option[]): Strategy | undefined {
  const own = options.filter((each) => ['temperature', ...FILTERS, 'beam_width'].includes(each.name));
  const told = (settings: Options): string => stringify(changed(settings, own));
  return strategies.find((each) => told(each.sampling) === told(sampling));
}
