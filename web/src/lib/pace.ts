// Limits how often the page is drawn. The text is drawn in every frame; the tree less often the more branches are being
// generated, and tables still less often, so that a frame never has too much to draw.

export interface Tempo {
  branch: number; // milliseconds between drawings, for each branch that is being generated
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

  /** Requests a drawing: at once, or when the time since the last one is over. */
  ask(branches: number): void {
    if (this.timer !== undefined) return;
    const { branch, longest, least } = this.tempo;
    const wait = Math.max(least, this.last + Math.min(longest, branch * branches) - performance.now());
    if (wait <= 0) this.go();
    else this.timer = setTimeout(() => this.go(), wait);
  }

  /** Draws at once, after an action of the user. */
  go(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.last = performance.now();
    this.draw();
  }
}
