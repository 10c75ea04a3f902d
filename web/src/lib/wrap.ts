// Breaks a run's tokens into lines of a given width, so that only the visible lines need to be in the DOM.

export interface Line {
  first: number; // the first of its tokens
  count: number;
}

/** Lines to which tokens are appended; earlier lines never change. */
export class Lines {
  readonly all: Line[] = [];
  private tokens = 0;
  private used = 0;
  private ended = true;

  constructor(private readonly room: number) {}

  /** Adds a token of this width; `ends` tells whether the line ends after it. */
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

/** Returns the line that contains a token. */
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

/** Returns the range of rows that are visible, and a few more on either side. */
export function inSight(scrolled: number, height: number, row: number, rows: number, beyond = 4): { from: number; to: number } {
  const from = Math.max(0, Math.floor(scrolled / row) - beyond);
  return { from, to: Math.min(rows, Math.ceil((scrolled + height) / row) + beyond) };
}
