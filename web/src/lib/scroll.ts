// Computes where to scroll so that an item is visible with some room around it.

export interface Point {
  left: number;
  top: number;
}
export interface Size {
  width: number;
  height: number;
}

const [LEFT, RIGHT] = [60, 90]; // pixels of room on either side of it, at least

export function intoSight(box: Point & Size, scrolled: Point, window: Size, all: Size): Point {
  const outside = box.left < scrolled.left + LEFT || box.left + box.width > scrolled.left + window.width - RIGHT;
  const above = box.top < scrolled.top || box.top + box.height > scrolled.top + window.height;
  return {
    left: outside ? within(box.left - window.width / 2.6, all.width - window.width) : scrolled.left,
    top: above ? within(box.top - window.height / 3, all.height - window.height) : scrolled.top,
  };
}

/** Returns how far a box has to scroll down, or up if negative, until an item in it is in sight. */
export function beyond(item: { top: number; bottom: number }, box: { top: number; bottom: number }): number {
  return item.top < box.top ? item.top - box.top : Math.max(0, Math.min(item.bottom - box.bottom, item.top - box.top));
}

const within = (value: number, most: number): number => Math.round(Math.max(0, Math.min(value, most)));
