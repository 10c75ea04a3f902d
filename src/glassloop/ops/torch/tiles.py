"""Which tile a matrix product uses. Tiles change the speed and not the bits, so the table may be anything:
that of an H200, or one that was found on another GPU (tile_table.py)."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, TypeAlias


# Triton's own functions of these names also serve kernels, and take microseconds each; a step that is not a
# graph calls them some 450 times.
def cdiv(number: int, divisor: int) -> int:
    """Returns the quotient, rounded up."""
    return -(-number // divisor)


def next_power_of_2(number: int) -> int:
    """Returns the smallest power of two that is not less than a positive number."""
    return 1 << (number - 1).bit_length()


class Tile(NamedTuple):
    """The part of a product that one program computes, and how."""

    rows: int  # of x
    width: int  # rows of the matrix
    step: int  # columns that are read at a time
    swapped: bool  # whether the transpose is computed
    warps: int
    stages: int
    pieces: int = 1  # in which `wide_linear_kernel` writes the outputs


ANY = 1 << 40
_MARGIN = 1024  # bytes of shared memory besides the tiles: barriers
WIDE = 129  # rows from which tiles are copied by descriptors

# By the number of rows, up to the first that is not exceeded; then by the rows of the matrix, likewise.
Tiles: TypeAlias = tuple[tuple[int, tuple[tuple[int, Tile], ...]], ...]


class Table(NamedTuple):
    """The tiles of all products on a GPU."""

    plain: Tiles
    wide: Tiles  # copied by descriptors
    gated: Tiles  # likewise, of products with a gate, which has half as many outputs


_LARGE = Tile(128, 256, 64, False, 8, 4, pieces=4)
H200 = Table(
    plain=(
        (
            16,
            (
                (5120, Tile(16, 16, 256, False, 2, 6)),
                (8192, Tile(16, 64, 256, True, 4, 4)),
                (ANY, Tile(16, 64, 128, True, 4, 4)),
            ),
        ),
        (32, ((8192, Tile(32, 32, 128, False, 4, 4)), (ANY, Tile(32, 64, 128, False, 4, 4)))),
        (
            64,
            (
                (5120, Tile(64, 32, 128, False, 4, 5)),
                (8192, Tile(64, 64, 128, False, 8, 4)),
                (ANY, Tile(64, 128, 128, False, 4, 4)),
            ),
        ),
        (128, ((5120, Tile(64, 64, 128, False, 8, 4)), (ANY, Tile(128, 64, 128, False, 8, 4)))),
        (256, ((5120, Tile(64, 128, 128, False, 4, 4)), (ANY, Tile(128, 128, 64, False, 4, 5)))),
        (ANY, ((ANY, Tile(128, 128, 64, False, 4, 5)),)),
    ),
    wide=(
        (
            256,
            (
                (5120, Tile(64, 128, 128, False, 4, 4)),
                (8192, Tile(128, 128, 64, False, 4, 5)),
                (ANY, _LARGE),
            ),
        ),
        (ANY, ((ANY, _LARGE),)),
    ),
    gated=((ANY, ((ANY, _LARGE._replace(pieces=2)),)),),
)
_in_use = H200


def table_in_use() -> Table:
    """Returns the table that tiles are taken from."""
    return _in_use


def use_table(table: Table) -> None:
    """Takes the tiles of a table from now on."""
    global _in_use
    _in_use = table
    for each in (tile_for, sliced_tile_for, wide_tile_for):
        each.cache_clear()


def _tile_in(tiles: Tiles, rows: int, weight_rows: int) -> Tile:
    """Returns the tile for so many rows of x and of the matrix."""
    by_width = next(widths for most, widths in tiles if rows <= most)
    return next(tile for most, tile in by_width if weight_rows <= most)


@cache
def tile_for(rows: int, weight_rows: int, shared_memory: int) -> Tile:
    """Returns the tile of a product of this many rows with a matrix, with as many stages as fit into the
    shared memory."""
    return _fitted(_tile_in(_in_use.plain, rows, weight_rows), 0, shared_memory)


@cache
def sliced_tile_for(rows: int, weight_rows: int, shared_memory: int) -> Tile:
    """Returns the tile of a product in slices, which needs twice as many accumulators; its step divides the
    128 columns of a chunk."""
    tile = tile_for(rows, weight_rows, shared_memory)
    if tile.rows * tile.width > 64 * 128:
        return _fitted(Tile(128, 128, 128, False, 8, 3), 0, shared_memory)
    return tile._replace(step=min(tile.step, 128))


@cache
def wide_tile_for(rows: int, weight_rows: int, gated: bool, shared_memory: int) -> Tile:
    """Returns the tile of a product of many rows by `wide_linear_kernel`, likewise."""
    tile = _tile_in(_in_use.gated if gated else _in_use.wide, rows, weight_rows)
    return _fitted(tile, output_bytes(tile, gated), shared_memory)


def output_bytes(tile: Tile, gated: bool) -> int:
    """Returns the shared memory that `wide_linear_kernel` needs for a piece of the outputs of a tile."""
    return 4 * tile.rows * (tile.width // 2 if gated else tile.width) // tile.pieces


def most_stages(tile: Tile, besides: int, shared_memory: int) -> int:
    """Returns how many stages of a tile fit into the shared memory besides this many bytes."""
    return (shared_memory - _MARGIN - besides) // (2 * tile.step * (tile.rows + tile.width))


def _fitted(tile: Tile, besides: int, shared_memory: int) -> Tile:
    """Returns a tile with as many of its stages as fit into the shared memory besides this many bytes."""
    return tile._replace(stages=max(1, min(tile.stages, most_stages(tile, besides, shared_memory))))
