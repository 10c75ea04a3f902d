// Plays a run back, token by token. `head` is the number of tokens shown so far; null means all.

const BEAT = 110; // milliseconds for a token
const quiet = typeof matchMedia === 'function' ? matchMedia('(prefers-reduced-motion: reduce)') : { matches: false };

export class Playback {
  head = $state<number | null>(null);
  playing = $state(false);
  private timer: ReturnType<typeof setInterval> | undefined;

  /** Returns how many of `count` tokens are shown. */
  shown(count: number): number {
    return this.head === null ? count : Math.min(this.head, count);
  }

  /** Plays from a token on. `count` and `live` are called at each beat, because the run may still grow. */
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

  /** Shows one more token. Returns whether there was one. */
  step(count: number): boolean {
    if (this.head === null || this.head >= count) return false;
    this.head = this.head + 1 < count ? this.head + 1 : null;
    return true;
  }

  pause(): void {
    clearInterval(this.timer);
    this.playing = false;
  }

  /** Shows all tokens at once. */
  end(): void {
    this.pause();
    this.head = null;
  }
}
