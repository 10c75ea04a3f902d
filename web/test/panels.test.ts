import { describe, expect, it } from 'vitest';
import { columnsOf, COLUMN, DEFAULT, LEAST, moveBorder, moveSide, readRoom, rowsOf, SIDE, toggle } from '../src/lib/panels';

describe('the room of the panels', () => {
  it('is kept in the storage and comes back the same', () => {
    const room = toggle(moveSide(DEFAULT, 512), 'tree');
    expect(readRoom(JSON.stringify(room))).toEqual(room);
  });
  it('is the default where the storage holds anything else', () => {
    for (const text of [null, '', '{', '7', 'null', '[]', '{"weights":[],"side":"x","closed":{}}', '{"weights":{"text":-1,"tree":"<b>","lens":1e99},"closed":["nothing"]}']) expect(readRoom(text)).toEqual(DEFAULT);
    expect(readRoom('{"side":5}').side).toBe(SIDE.least);
    expect(readRoom('{"side":99999}').side).toBe(SIDE.most);
  });
  it('moves a border within what both panels need', () => {
    const heights = { text: 200, tree: 200, lens: 300 };
    expect(moveBorder(DEFAULT, 'text', heights, 30).weights).toEqual({ text: 230, tree: 170, lens: 300 });
    expect(moveBorder(DEFAULT, 'text', heights, 500).weights).toEqual({ text: 200 + 200 - LEAST.tree, tree: LEAST.tree, lens: 300 });
    expect(moveBorder(DEFAULT, 'tree', heights, -500).weights).toEqual({ text: 200, tree: LEAST.tree, lens: 500 - LEAST.tree });
  });
  it('moves the border to the next open panel, and keeps the share of a collapsed one', () => {
    const room = toggle(DEFAULT, 'tree');
    const moved = moveBorder(room, 'text', { text: 200, tree: 36, lens: 400 }, 50);
    expect(moved.weights).toEqual({ text: 250, tree: DEFAULT.weights.tree, lens: 350 });
    expect(moveBorder(room, 'tree', { text: 200, tree: 36, lens: 400 }, 50)).toBe(room);
  });
  it('leaves a collapsed panel its head', () => {
    expect(rowsOf(DEFAULT).match(/fr/g)).toHaveLength(3);
    expect(rowsOf(toggle(DEFAULT, 'lens'))).toMatch(/ 36px$/);
    expect(rowsOf(COLUMN.reduce((room, name) => toggle(room, name), DEFAULT))).toMatch(/1fr$/);
    expect(columnsOf(toggle(DEFAULT, 'why'))).toMatch(/36px$/);
    expect(toggle(toggle(DEFAULT, 'why'), 'why')).toEqual(DEFAULT);
  });
});
