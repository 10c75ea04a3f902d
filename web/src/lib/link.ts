// Links that can be shared. One names the run, if the server still has it, and says how to make it again if
// it does not: the same prompt, options and seed give the same tokens.

import type { Run } from './forest';
import { parse, stringify } from './json';
import { changed } from './options';
import type { Message, Option, Options } from './types';

export interface Turn {
  at: number;
  token?: number;
  text?: string;
  sampling?: Options;
}

export interface Recipe {
  prompt?: string;
  messages?: Message[];
  sampling: Options;
  diffusion?: Options; // the text was filled in passes
  turns: Turn[]; // the forks and edits that led here
}

export interface Link {
  run: string | null;
  at: number | null;
  recipe: Recipe | null;
}

export function toHash(link: Link): string {
  const parts = new URLSearchParams();
  if (link.run) parts.set('run', link.run);
  if (link.at !== null) parts.set('at', String(link.at));
  if (link.recipe) parts.set('make', encode(link.recipe));
  const text = parts.toString();
  return text ? `#${text}` : '';
}

// The server's answers have the id of their run behind one of these, in OpenAI's manner.
const ANSWER = /^(chatcmpl-|cmpl-|resp_|msg_)(?=[0-9a-f]+$)/;

/** Returns the id of the run that a name gives: the id itself, or that of an answer, such as chatcmpl-d3c160096f7b279e. */
export const runIdOf = (name: string): string => name.replace(ANSWER, '');

export function fromHash(hash: string): Link {
  const parts = new URLSearchParams(hash.replace(/^#/, ''));
  const run = parts.get('run');
  const at = parts.get('at');
  return {
    run: run && /^[\w-]{1,64}$/.test(run) ? runIdOf(run) : null,
    at: at && /^\d{1,7}$/.test(at) ? Number(at) : null,
    recipe: decode(parts.get('make')),
  };
}

// A model may set these, and a server may ignore what it sets: no other server has to have the same defaults.
const FROM_MODEL = new Set(['temperature', 'top_k', 'top_p', 'min_p', 'typical_p', 'epsilon_cutoff', 'eta_cutoff', 'xtc_probability', 'xtc_threshold', 'repetition_penalty', 'no_repeat_ngram_size']);

/** How a run came about: its first ancestor's prompt and options, then each turn that was taken. */
export function recipeOf(run: Run, runs: ReadonlyMap<string, Run>, options: readonly Option[], messages?: Message[]): Recipe | null {
  const line: Run[] = [run];
  while (line[0]!.summary.parent !== null) {
    const parent = runs.get(line[0]!.summary.parent);
    if (!parent) return null;
    line.unshift(parent);
  }
  const first = line[0]!.summary;
  const made: Recipe = { sampling: { ...picked(first.sampling, ({ name }) => FROM_MODEL.has(name), options), ...changed(first.sampling, options), seed: first.seed }, turns: [] };
  delete made.sampling['timeout'];
  if (first.diffusion) {
    const { adapter: _, ...options } = first.diffusion; // that of the server's own model
    made.diffusion = options;
  }
  if (messages) made.messages = messages;
  else made.prompt = first.prompt;
  line.slice(1).forEach((each, place) => made.turns.push(turn(each, line[place]!, options)));
  return made;
}

function turn(run: Run, parent: Run, options: readonly Option[]): Turn {
  const { fork_at, reason, sampling } = run.summary;
  const at = fork_at ?? 0;
  if (reason === 'forced' && run.tokens[at]) return { at, token: run.tokens[at].id };
  if (reason === 'edited') {
    let text = '';
    for (let i = at; run.tokens[i]?.source === 'forced'; i++) text += run.tokens[i]!.piece;
    return { at, text };
  }
  const before = parent.summary.sampling;
  const differing = picked(sampling, ({ name }) => name !== 'seed' && stringify(sampling[name]) !== stringify(before[name]), options);
  return Object.keys(differing).length ? { at, sampling: differing } : { at };
}

function picked(sampling: Options, wanted: (option: Option) => boolean, options: readonly Option[]): Options {
  return Object.fromEntries(options.filter((each) => sampling[each.name] !== undefined && wanted(each)).map(({ name }) => [name, sampling[name]]));
}

function encode(value: unknown): string {
  const bytes = new TextEncoder().encode(stringify(value));
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join('')).replace(/\+/g, '-').replace(/\//g, '_').replace(/=+$/, '');
}

function decode(text: string | null): Recipe | null {
  if (!text) return null;
  try {
    const bytes = Uint8Array.from(atob(text.replace(/-/g, '+').replace(/_/g, '/')), (each) => each.charCodeAt(0));
    const made = parse(new TextDecoder().decode(bytes)) as Recipe;
    const fine = (typeof made.prompt === 'string' || Array.isArray(made.messages)) && Array.isArray(made.turns) && typeof made.sampling === 'object';
    return fine ? made : null;
  } catch {
    return null;
  }
}
