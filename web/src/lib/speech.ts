// Splits the growing text of a run into sentences for screen readers, which should not read single tokens.

export class Sentences {
  private rest = '';

  /** Adds text and returns the sentences that it completes. */
  feed(text: string): string[] {
    this.rest += text;
    const made: string[] = [];
    for (;;) {
      const end = /[.!?…](?=\s)|\n+/.exec(this.rest);
      if (!end) return made;
      const done = this.rest.slice(0, end.index + end[0].length).trim();
      this.rest = this.rest.slice(end.index + end[0].length);
      if (done) made.push(done);
    }
  }

  /** Returns the unfinished rest at the end of a run. */
  finish(): string {
    const left = this.rest.trim();
    this.rest = '';
    return left;
  }
}
