// Breaks a run's tokens into lines of a given width, so that only the lines in sight need to be on the page.

export interface Line {
  first: number; // the first of its tokens
  count: number;
}

/** Lines that grow at their end: what is broken stays broken, however many tokens follow. */
export class Lines {
  readonly all: Line[] = [];
  private tokens = 0;
  private used = 0;
  private ended = true;

  constructor(private readonly room: number) {}

  /** The next token: how wide it is, and whether a line ends after it. */
  add(width: number, ends: boolean): void {
    if (this.ended || this.used + width > this.room) {
      this.all.push({ first: this.tokens, count: 0 });
      this.used = 0;
    }
    this.all.at(-1)!.count++;
    this.tokens++;
    this.used += width;
    this.ended = ends;
  }

  get count(): number {
    return this.tokens;
  }
}

/** The line that holds a token. */
export function lineOf(lines: readonly Line[], token: number): number {
  let low = 0;
  let high = lines.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (lines[middle]!.first <= token) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** Rows of a list that are in sight, and a few beyond. */
export function inSight(scrolled: number, height: number, row: number, rows: number, beyond = 4): { from: number; to: number } {
  const from = Math.max(0, Math.floor(scrolled / row) - beyond);
  return { from, to: Math.min(rows, Math.ceil((scrolled + height) / row) + beyond) };
}
