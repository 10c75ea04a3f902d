// How the room of the page is divided: the weights of the panels in the left column, the width of the right one, and
// which panels are collapsed. It is kept in the browser's storage, whose content is checked like any other input.

export const COLUMN = ['text', 'tree', 'lens'] as const; // from top to bottom
export type InColumn = (typeof COLUMN)[number];
export type PanelId = InColumn | 'why' | 'prompt';

export interface Room {
  readonly weights: Readonly<Record<InColumn, number>>; // shares of the column's height
  readonly side: number; // pixels: the width of the right column
  readonly closed: readonly PanelId[];
}

export const HEAD = 36; // pixels: the height of a collapsed panel
export const GAP = 8; // pixels between panels; the gap is the handle that resizes them
export const LEAST: Readonly<Record<InColumn, number>> = { text: 100, tree: 120, lens: 140 };
export const SIDE = { least: 300, most: 900 };
export const DEFAULT: Room = { weights: { text: 19, tree: 37, lens: 44 }, side: 416, closed: [] };
const PANELS: readonly PanelId[] = [...COLUMN, 'why', 'prompt'];

/** Reads what the storage holds; anything unexpected gives the default. */
export function readRoom(text: string | null): Room {
  try {
    const told = JSON.parse(text ?? 'null') as Partial<Room> | null;
    if (told === null || typeof told !== 'object') return DEFAULT;
    const weights = { ...DEFAULT.weights };
    for (const name of COLUMN) {
      const value = Number(told.weights?.[name]);
      if (Number.isFinite(value) && value >= 1 && value <= 10_000) weights[name] = value;
    }
    const side = Number(told.side);
    const closed = Array.isArray(told.closed) ? PANELS.filter((each) => told.closed!.includes(each)) : [];
    return { weights, side: Number.isFinite(side) ? clamp(side, SIDE.least, SIDE.most) : DEFAULT.side, closed };
  } catch {
    return DEFAULT;
  }
}

/** The rows of the left column, as CSS: panels with gaps between them. A collapsed panel keeps its head. */
export function rowsOf({ weights, closed }: Room): string {
  const open = COLUMN.filter((name) => !closed.includes(name));
  // With every panel collapsed, the rest of the column is empty.
  const tracks = COLUMN.map((name) => (closed.includes(name) ? `${HEAD}px` : `minmax(${LEAST[name]}px, ${weights[name]}fr)`));
  return `${tracks.join(` ${GAP}px `)}${open.length ? '' : ' 1fr'}`;
}

/** The columns, as CSS. The right one never takes more than half of a small window. */
export function columnsOf({ side, closed }: Room): string {
  return `minmax(0, 1fr) ${GAP}px ${closed.includes('why') ? `${HEAD}px` : `minmax(0, min(${side}px, 50%))`}`;
}

/** Moves the border below a panel by some pixels. `heights` are those on the screen. */
export function moveBorder(room: Room, above: InColumn, heights: Readonly<Record<InColumn, number>>, by: number): Room {
  const below = COLUMN.slice(COLUMN.indexOf(above) + 1).find((name) => !room.closed.includes(name));
  if (below === undefined || room.closed.includes(above)) return room;
  const moved = clamp(by, LEAST[above] - heights[above], heights[below] - LEAST[below]);
  const weights = { ...room.weights, ...heights, [above]: heights[above] + moved, [below]: heights[below] - moved };
  for (const name of room.closed) if (name in weights) weights[name as InColumn] = room.weights[name as InColumn];
  return { ...room, weights };
}

export const moveSide = (room: Room, width: number): Room => ({ ...room, side: clamp(Math.round(width), SIDE.least, SIDE.most) });

export function toggle(room: Room, panel: PanelId): Room {
  return { ...room, closed: room.closed.includes(panel) ? room.closed.filter((each) => each !== panel) : [...room.closed, panel] };
}

const clamp = (value: number, least: number, most: number): number => Math.max(least, Math.min(most, value));
