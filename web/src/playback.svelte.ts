// Playing a run back, token by token. `head` is how many are there so far; null is all of them.

const BEAT = 110; // milliseconds for a token
const quiet = typeof matchMedia === 'function' ? matchMedia('(prefers-reduced-motion: reduce)') : { matches: false };

export class Playback {
  head = $state<number | null>(null);
  playing = $state(false);
  private timer: ReturnType<typeof setInterval> | undefined;

  /** Of so many tokens. */
  shown(count: number): number {
    return this.head === null ? count : Math.min(this.head, count);
  }

  /** `count` and `live` are asked with each beat: it may be written meanwhile. */
  play(from: number, count: () => number, live: () => boolean): void {
    this.pause();
    if (quiet.matches) {
      this.head = null;
      return;
    }
    this.head = from;
    this.playing = true;
    this.timer = setInterval(() => {
      if ((this.head ?? 0) < count()) this.head = (this.head ?? 0) + 1;
      else if (!live()) this.end();
    }, BEAT);
  }

  /** Whether there was one more to show. */
  step(count: number): boolean {
    if (this.head === null || this.head >= count) return false;
    this.head = this.head + 1 < count ? this.head + 1 : null;
    return true;
  }

  pause(): void {
    clearInterval(this.timer);
    this.playing = false;
  }

  /** All of it, at once. */
  end(): void {
    this.pause();
    this.head = null;
  }
}
