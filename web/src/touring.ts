// What the guided tour leaves behind: nothing. Its examples are removed from the server when it ends, and the page goes
// back to what it showed before. Where a tour was cut off, the next one removes its examples.

import { api, ApiError } from './lib/api';
import { isRemovable } from './lib/runs';
import { plural } from './lib/format';
import type { Options } from './lib/types';
import { studio } from './studio.svelte';

const KEY = 'tour';
const TRIES = 50; // ten in a second

interface Before {
  tree: string | null;
  run: string | null;
  pin: number | null;
  sampling: Options;
}

export class Touring {
  private examples = new Set<string>(stored()); // trees
  private before: Before | null = null;

  async begin(): Promise<void> {
    const { tree, runId, pin, sampling } = studio;
    this.before = { tree, run: runId, pin, sampling };
    studio.made.clear();
    await this.removeExamples();
  }

  /** Remembers a tree that the tour has started. */
  note(tree: string): void {
    this.examples.add(tree);
    this.keep();
  }

  /** Shows what was shown before, and removes the examples. */
  async end(): Promise<void> {
    const own = [...studio.made].filter((tree) => !this.examples.has(tree));
    const { tree, run, pin, sampling } = this.before!;
    studio.sampling = sampling;
    if (studio.tree !== null && this.examples.has(studio.tree)) await studio.leaveFor(tree, run, pin);
    await this.removeExamples();
    const counts = await Promise.all(own.map(async (each) => (await api.tree(each).catch(() => [])).length));
    const count = counts.reduce((sum, each) => sum + each, 0);
    const text = 'The tour is over. Its examples are no longer in the list of runs';
    if (!count) studio.notice = { kind: 'info', text: `${text}.` };
    else studio.notice = { kind: 'info', text: `${text}; your own ${plural(count, 'run')} ${count === 1 ? 'is' : 'are'}.`, action: { label: 'Remove these too', run: () => studio.guard(() => this.removeOwn(own)) } };
  }

  private async removeOwn(trees: readonly string[]): Promise<void> {
    studio.notice = null;
    if (studio.tree !== null && trees.includes(studio.tree)) await studio.leaveFor(this.before!.tree, this.before!.run, this.before!.pin);
    for (const tree of trees) await removeTree(tree);
  }

  private async removeExamples(): Promise<void> {
    for (const tree of [...this.examples]) {
      if (await removeTree(tree)) this.examples.delete(tree);
    }
    this.keep();
  }

  private keep(): void {
    try {
      localStorage.setItem(KEY, JSON.stringify([...this.examples]));
    } catch {
      // Storage is not allowed: a tour that is cut off leaves its examples.
    }
  }
}

/** Removes all runs of a tree, and returns whether none is left. */
async function removeTree(tree: string): Promise<boolean> {
  try {
    for (const run of await api.tree(tree)) {
      if (!isRemovable(run)) await api.stop(run.id);
      await remove(run.id);
    }
    return true;
  } catch {
    return false; // the server is away: the next tour removes it
  }
}

/** Removes a run, as soon as the server has stopped it. */
async function remove(id: string): Promise<void> {
  for (let tries = 0; ; tries++) {
    try {
      return void (await api.remove(id));
    } catch (error) {
      if (error instanceof ApiError && error.expired) return; // it is removed already
      if (!(error instanceof ApiError && error.status === 409) || tries === TRIES) throw error;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
}

function stored(): string[] {
  try {
    const trees: unknown = JSON.parse(localStorage.getItem(KEY) ?? '[]');
    return Array.isArray(trees) ? trees.filter((each) => typeof each === 'string') : [];
  } catch {
    return [];
  }
}
