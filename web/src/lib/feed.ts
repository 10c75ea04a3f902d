// A tree as it grows: follows its events over broken connections, fetches what they do not tell, and keeps the
// forest. The listener is told once per frame of all that came.

import { api, type ApiError } from './api';
import { follow } from './events';
import { Forest, isLive } from './forest';
import type { TreeEvent } from './types';

export interface Listener {
  /** The forest has grown by these events; without any, by what was fetched. */
  came: (events: readonly TreeEvent[]) => void;
  connected: () => void;
  away: () => void;
  /** The server does not know this tree any more, or refuses it for good. */
  lost: (error: ApiError) => void;
  failed: (error: unknown) => void;
}

const ALTERNATIVES = 20;

export class Feed {
  forest = new Forest();
  private tree: string | null = null;
  private stop: () => void = () => {};
  private pending: TreeEvent[] = [];
  private readonly fetching = new Set<string>(); // runs whose details were asked for
  private readonly again = new Set<string>(); // and those that have to be asked for once more

  constructor(
    private readonly listener: Listener,
    private readonly soon: (work: () => void) => void = withTheNextFrame,
  ) {}

  /** Follows another tree from here on. When this returns, the forest has the runs that the tree has so far. */
  async open(tree: string): Promise<void> {
    this.stop();
    this.forest = new Forest();
    this.pending = [];
    this.tree = tree;
    // First the connection, then what is there already: so nothing falls between the two.
    await new Promise<void>((connected) => this.listen(tree, connected));
    await this.load(tree);
  }

  /** Stops following. The forest stays as it is. */
  close(): void {
    this.stop();
  }

  private listen(tree: string, connected: () => void): void {
    let broken = false;
    this.stop = follow(tree, {
      event: (event) => {
        this.pending.push(event);
        if (this.pending.length === 1) this.soon(() => this.flush());
      },
      open: (missed) => {
        connected();
        this.listener.connected();
        if (broken && missed) this.load(tree).then(() => this.listener.came([]), this.listener.failed);
        // A server that was restarted has no event of what it interrupted.
        else if (broken) for (const [id, run] of this.forest.runs) if (isLive(run)) void this.details(id);
        broken = false;
      },
      away: () => {
        broken = true;
        this.listener.away();
      },
      lost: (error) => {
        connected();
        this.listener.lost(error);
      },
    });
  }

  private async load(tree: string): Promise<void> {
    const runs = (await api.tree(tree)).reverse(); // parents first: the tokens that a fork shares with its parent come with that
    const here = new Set(runs.map((run) => run.id));
    const wholes = await Promise.all(runs.map(({ id, parent, fork_at }) => api.run(id, ALTERNATIVES, parent !== null && here.has(parent) ? (fork_at ?? 0) : 0)));
    if (tree === this.tree) for (const whole of wholes) this.forest.whole(whole);
  }

  private flush(): void {
    const events = this.pending;
    this.pending = [];
    const incomplete = new Set<string>();
    for (const event of events) if (!this.forest.apply(event)) event.kind === 'pass' && this.forest.runs.has(event.run) ? void this.passes(event.run) : incomplete.add(event.run);
    for (const event of events) if (event.kind === 'end' && !incomplete.has(event.run)) void this.details(event.run, this.forest.runs.get(event.run)?.tokens.length);
    for (const run of incomplete) void this.details(run);
    this.listener.came(events);
  }

  /** Fetches what events do not tell: the prompt's tokens, the last token, the beams; and the tokens from one on. */
  async details(run: string, from = 0): Promise<void> {
    if (this.fetching.has(run)) return void this.again.add(run); // one at a time: of a long run each is large
    this.fetching.add(run);
    try {
      const whole = await api.run(run, ALTERNATIVES, from);
      if (whole.tree !== this.tree) return;
      this.forest.whole(whole);
      this.listener.came([]);
    } catch {
      // The stream says what is wrong with the server, and tries again.
    } finally {
      this.fetching.delete(run);
    }
    if (this.again.delete(run)) await this.details(run);
  }

  /** Fetches the passes of a run that are not here yet. */
  async passes(run: string): Promise<void> {
    const key = `${run}/passes`;
    if (this.fetching.has(key)) return;
    this.fetching.add(key);
    try {
      for (;;) {
        const { frames, more } = await api.passes(run, (this.forest.runs.get(run)?.frames.length ?? 0) - 1);
        if (!this.forest.filled(run, frames)) return; // another tree is open
        this.listener.came([]);
        if (!more || !frames.length) return;
      }
    } catch (error) {
      this.listener.failed(error);
    } finally {
      this.fetching.delete(key);
    }
  }

  async ended(run: string): Promise<void> {
    while (isLive(this.forest.runs.get(run) ?? null)) await new Promise((resolve) => setTimeout(resolve, 30));
  }
}

/** Runs work with the next frame, or soon if the page is hidden and has no frames. */
function withTheNextFrame(work: () => void): void {
  if (document.hidden) setTimeout(work, 100);
  else requestAnimationFrame(work);
}
