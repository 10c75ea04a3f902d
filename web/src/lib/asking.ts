// What is sent to the server when a prompt is run: into which tree it goes, and the strategies of a row of seeds.

import { sameMessages } from './chat';
import { defaultOf } from './options';
import type { Message, Option, Options, StartBody } from './types';

/** What the model is asked: a text to continue, or a conversation. */
export type Question = { prompt: string } | { messages: Message[] };

/** Returns whether a run was asked this. `messages` are those of the run, null if it continues a text. */
export function asksSame(question: Question, prompt: string, messages: readonly Message[] | null): boolean {
  return 'messages' in question ? messages !== null && sameMessages(question.messages, messages) : messages === null && question.prompt === prompt;
}

/** Returns one strategy for each seed from 1 to `count`, and the common options without `seed` and `n`. */
export function seeds(count: number, sampling: Options): Pick<StartBody, 'sampling' | 'strategies'> {
  const { seed: _seed, n: _n, ...common } = sampling;
  return { sampling: common, strategies: Array.from({ length: count }, (_, place) => ({ name: `seed ${place + 1}`, sampling: { seed: place + 1 } })) };
}

/** Returns whether other seeds give other texts. */
export function hasLuck(sampling: Options, options: readonly Option[]): boolean {
  return (sampling['temperature'] ?? defaultOf('temperature', options)) !== 0 && !(Number(sampling['beam_width']) > 1);
}

/** Why “new luck” has nothing to do. */
export const NO_LUCK = 'This run was made without luck, so there is no other luck to grow';
