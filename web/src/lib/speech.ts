// For those who listen: whole sentences as they are finished, not one token after the other.

export class Sentences {
  private rest = '';

  /** The sentences that this text completes. */
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

  /** What is left at the end. */
  finish(): string {
    const left = this.rest.trim();
    this.rest = '';
    return left;
  }
}
