// The list of runs: what it says about each of them, their trees, and the pages it is fetched in.

import { endWord } from './format';
import type { Summary } from './types';

export interface Group {
  tree: string;
  title: string;
  chat: boolean;
  runs: Summary[]; // newest first
}

/** Returns the runs by tree, the tree with the newest run first. */
export function groups(runs: readonly Summary[]): Group[] {
  const made = new Map<string, Group>();
  for (const run of runs) {
    const group = made.get(run.tree);
    if (group) group.runs.push(run);
    else made.set(run.tree, { tree: run.tree, title: run.title, chat: run.messages !== null, runs: [run] });
  }
  return [...made.values()];
}

/** Returns the runs of all pages in their order, each once: as in the first page that has it. */
export function merged(...pages: readonly (readonly Summary[])[]): Summary[] {
  const made = new Map<string, Summary>();
  for (const page of pages) for (const run of page) if (!made.has(run.id)) made.set(run.id, run);
  return [...made.values()];
}

/** Returns how long ago a run was started, or the day and time. Both arguments are in seconds. */
export function when(created: number, now: number): string {
  const ago = now - created;
  if (ago < 60) return 'just now';
  if (ago < 3600) return `${Math.floor(ago / 60)} min ago`;
  const [then, today] = [new Date(1000 * created), new Date(1000 * now)];
  const time = then.toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' });
  if (then.toDateString() === today.toDateString()) return `today, ${time}`;
  const year = then.getFullYear() === today.getFullYear() ? {} : { year: 'numeric' as const };
  return `${then.toLocaleDateString('en-GB', { day: 'numeric', month: 'short', ...year })}, ${time}`;
}

/** Returns how a run ended, or its state, in a few words. */
export function state(run: Summary): string {
  switch (run.status) {
    case 'running': return 'writing …';
    case 'waiting': return 'waiting …';
    case 'elsewhere': return 'on another server …';
    case 'done': return run.finish_reason === 'length' && run.stop_reason === 'context' ? 'context full' : endWord(run.finish_reason);
    default: return run.status;
  }
}

/** Returns whether a run can be removed: it has ended, as far as this server knows. */
export const isRemovable = ({ status }: Summary): boolean => status === 'done' || status === 'failed' || status === 'paused';
