"""Which tile a matrix product uses. Tiles change the speed and not the bits, so the table may be anything."""

from __future__ import annotations

from typing import NamedTuple


class Tile(NamedTuple):
    rows: int
    width: int
    step: int  # columns that are read at a time
    swapped: bool  # whether the transpose is computed
    warps: int
    stages: int


# By the number of rows, up to the first that is not exceeded; then by the number of outputs, likewise.
_TABLE: tuple[tuple[int, tuple[tuple[int, Tile], ...]], ...] = (
    (16, ((5120, Tile(16, 32, 256, False, 4, 4)), (1 << 40, Tile(16, 64, 128, False, 4, 4)))),
    (32, ((5120, Tile(32, 32, 128, False, 4, 5)), (1 << 40, Tile(32, 64, 128, False, 4, 4)))),
    (64, ((5120, Tile(64, 32, 128, False, 4, 4)), (1 << 40, Tile(64, 128, 64, False, 4, 4)))),
    (128, ((8192, Tile(64, 64, 64, False, 4, 4)), (1 << 40, Tile(128, 128, 64, False, 8, 4)))),
    (1 << 40, ((6144, Tile(128, 128, 64, False, 8, 4)), (1 << 40, Tile(128, 256, 64, False, 8, 3)))),
)


def tile_for(rows: int, width: int, gated: bool) -> Tile:
    """Returns the tile of a product with this many rows and outputs. A gated product has two accumulators."""
    by_width = next(widths for most, widths in _TABLE if rows <= most)
    tile = next(tile for most, tile in by_width if width <= most)
    return tile._replace(width=max(tile.width // 2, 16)) if gated and tile.rows * tile.width > 8192 else tile
