// A conversation as messages: the system's, the turns so far, the answer that is looked at, and what is asked now.

import type { Message } from './types';

export function messagesOf(system: string, turns: readonly Message[], answer: string | null, prompt: string): Message[] {
  const first: Message[] = system.trim() ? [{ role: 'system', content: system }] : [];
  const last: Message[] = turns.at(-1)?.role === 'user' && answer !== null ? [{ role: 'assistant', content: answer }] : [];
  return [...first, ...turns, ...last, { role: 'user', content: prompt }];
}
