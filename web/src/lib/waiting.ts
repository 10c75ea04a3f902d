// Tells when the server takes long: a page that waits without a word looks broken.

const LONG = 1000; // milliseconds

/** Counts the requests that have been without an answer for a second. */
export class Waiting {
  private count = 0;

  constructor(private readonly listener: (count: number) => void) {}

  /** Returns what the work returns. */
  async during<T>(work: Promise<T>): Promise<T> {
    let long = false;
    const timer = setTimeout(() => {
      long = true;
      this.listener(++this.count);
    }, LONG);
    try {
      return await work;
    } finally {
      clearTimeout(timer);
      if (long) this.listener(--this.count);
    }
  }
}
