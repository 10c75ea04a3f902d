// How often the tree is drawn anew. The text goes on with every frame; the tree waits the longer, the more
// branches are written at once, so that a frame never has more to draw than there is time for.

const FOR_EACH_BRANCH = 8; // milliseconds
const LONGEST = 120;

export class Pace {
  private last = -Infinity;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly draw: () => void,
    private readonly now: () => number = () => performance.now(),
  ) {}

  /** Something has changed: draw now, or once it is time. */
  ask(branches: number): void {
    if (this.timer !== undefined) return;
    const wait = this.last + Math.min(LONGEST, FOR_EACH_BRANCH * branches) - this.now();
    if (wait <= 0) this.go();
    else this.timer = setTimeout(() => this.go(), wait);
  }

  /** Draw now: somebody did something. */
  go(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.last = this.now();
    this.draw();
  }
}
