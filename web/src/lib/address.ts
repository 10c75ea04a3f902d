// The address of the page names the run and the token that are shown, so that reload, Back and Forward find them.

import { fromHash, toHash } from './link';

export interface Move {
  hash: string;
  replace: boolean; // the entry of the history that is there; otherwise a new one
}

/** Returns how the address must change for a run and a token, or null if it names them already. Another run is a
 *  new entry of the history; another token of the same run is not. */
export function moveTo(hash: string, run: string, at: number | null): Move | null {
  const now = fromHash(hash);
  if (now.run !== run) return { hash: toHash({ run, at, recipe: null }), replace: now.run === null };
  return now.at === at ? null : { hash: toHash({ ...now, at }), replace: true };
}

interface Page {
  location: { hash: string };
  history: { pushState: (data: unknown, unused: string, url: string) => void; replaceState: (data: unknown, unused: string, url: string) => void };
}

const QUIET = 150; // milliseconds; browsers limit how often the address may change

export class Address {
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly page: Page) {}

  /** Names a run at once, and a token once it has been shown for a moment. `replace` leaves no way back to what the
   *  address names now. */
  name(run: string, at: number | null, replace = false): void {
    this.settle();
    const move = moveTo(this.page.location.hash, run, at);
    if (!move) return;
    if (fromHash(this.page.location.hash).run === run) this.timer = setTimeout(() => this.go(move.hash, true), QUIET);
    else this.go(move.hash, replace || move.replace);
  }

  /** Drops a token that was about to be named: the user has gone to another address. */
  settle(): void {
    clearTimeout(this.timer);
  }

  private go(hash: string, replace: boolean): void {
    if (replace) this.page.history.replaceState(null, '', hash);
    else this.page.history.pushState(null, '', hash);
  }
}
