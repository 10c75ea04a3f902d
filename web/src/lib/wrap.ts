// Breaks a run's tokens into lines of a given width, so that only the lines in sight need to be on the page.

export interface Line {
  first: number; // the first of its tokens
  count: number;
}

/** `widths[i]` is how wide token i is; a line also ends after a token that ends with a new line. */
export function wrap(widths: readonly number[], breaks: readonly boolean[], room: number): Line[] {
  const lines: Line[] = [];
  let first = 0;
  let used = 0;
  widths.forEach((width, i) => {
    if (i > first && used + width > room) {
      lines.push({ first, count: i - first });
      first = i;
      used = 0;
    }
    used += width;
    if (breaks[i]) {
      lines.push({ first, count: i + 1 - first });
      first = i + 1;
      used = 0;
    }
  });
  if (first < widths.length) lines.push({ first, count: widths.length - first });
  return lines;
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
