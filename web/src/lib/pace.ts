// How often things are drawn anew. The text goes on with every frame; the tree waits the longer, the more
// branches are written at once, and tables wait longer still, so that no frame has more to draw than it has time.

export interface Tempo {
  branch: number; // milliseconds from one drawing to the next, for each branch that is written
  longest: number;
  least: number; // from asking to drawing
}

export const TREE: Tempo = { branch: 8, longest: 120, least: 0 };
export const TABLES: Tempo = { branch: 32, longest: 500, least: 1 }; // never in the tree's own frame

export class Pace {
  private last = -Infinity;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly tempo: Tempo,
    private readonly draw: () => void,
  ) {}

  /** Something has changed: draw now, or once it is time. */
  ask(branches: number): void {
    if (this.timer !== undefined) return;
    const { branch, longest, least } = this.tempo;
    const wait = Math.max(least, this.last + Math.min(longest, branch * branches) - performance.now());
    if (wait <= 0) this.go();
    else this.timer = setTimeout(() => this.go(), wait);
  }

  /** Draw at once: somebody did something. */
  go(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.last = performance.now();
    this.draw();
  }
}
