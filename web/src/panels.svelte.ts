// The panels of the page: their sizes, which are collapsed, and the one that fills the page. Remembered between visits.

import { COLUMN, DEFAULT, moveBorder, moveSide, readRoom, toggle, type InColumn, type PanelId, type Room } from './lib/panels';

const KEY = 'panels';

class Panels {
  room = $state.raw<Room>(stored());
  whole = $state<PanelId | null>(null);

  isClosed = (panel: PanelId): boolean => this.whole !== panel && this.room.closed.includes(panel);

  toggle(panel: PanelId): void {
    this.whole = null;
    this.set(toggle(this.room, panel));
  }

  /** Lets a panel fill the page, or gives the others their room back. */
  fill(panel: PanelId): void {
    this.whole = this.whole === panel ? null : panel;
  }

  /** Opens a panel if it is collapsed or covered: something in it should be seen. */
  reveal(panel: PanelId): void {
    if (this.whole !== panel) this.whole = null;
    if (this.room.closed.includes(panel)) this.set(toggle(this.room, panel));
  }

  moveBorder(above: InColumn, heights: Record<InColumn, number>, by: number): void {
    this.set(moveBorder(this.room, above, heights, by));
  }

  moveSide(width: number): void {
    this.set(moveSide(this.room, width));
  }

  reset(): void {
    this.set({ ...DEFAULT, closed: this.room.closed });
  }

  private set(room: Room): void {
    this.room = room;
    try {
      localStorage.setItem(KEY, JSON.stringify(room));
    } catch {
      // Storage is not allowed: the sizes last for this visit.
    }
  }
}

function stored(): Room {
  try {
    return readRoom(localStorage.getItem(KEY));
  } catch {
    return DEFAULT;
  }
}

/** The heights of the panels of the left column on the screen. */
export function heightsIn(work: HTMLElement): Record<InColumn, number> {
  const heights = { text: 0, tree: 0, lens: 0 };
  for (const name of COLUMN) heights[name] = work.querySelector<HTMLElement>(`[data-panel="${name}"]`)?.offsetHeight ?? 0;
  return heights;
}

export const panels = new Panels();
