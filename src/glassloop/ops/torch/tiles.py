"""Which tile a matrix product uses. Tiles change the speed and not the bits, so the table may be anything."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple


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


_ANY = 1 << 40
_MARGIN = 1024  # bytes of shared memory besides the tiles: barriers
# By the number of rows, up to the first that is not exceeded; then by the rows of the matrix, likewise. Found
# by `python -m bench.gpu tiles` on an H200.
_TABLE: tuple[tuple[int, tuple[tuple[int, Tile], ...]], ...] = (
    (
        16,
        (
            (5120, Tile(16, 16, 256, False, 2, 6)),
            (8192, Tile(16, 64, 256, True, 4, 4)),
            (_ANY, Tile(16, 64, 128, True, 4, 4)),
        ),
    ),
    (32, ((8192, Tile(32, 32, 128, False, 4, 4)), (_ANY, Tile(32, 64, 128, False, 4, 4)))),
    (
        64,
        (
            (5120, Tile(64, 32, 128, False, 4, 5)),
            (8192, Tile(64, 64, 128, False, 8, 4)),
            (_ANY, Tile(64, 128, 128, False, 4, 4)),
        ),
    ),
    (128, ((5120, Tile(64, 64, 128, False, 8, 4)), (_ANY, Tile(128, 64, 128, False, 8, 4)))),
    (256, ((5120, Tile(64, 128, 128, False, 4, 4)), (_ANY, Tile(128, 128, 64, False, 4, 5)))),
    (_ANY, ((_ANY, Tile(128, 128, 64, False, 4, 5)),)),
)
# Of products whose tiles are copied by descriptors, likewise.
_LARGE = Tile(128, 256, 64, False, 8, 4, pieces=4)
_WIDE: tuple[tuple[int, tuple[tuple[int, Tile], ...]], ...] = (
    (
        256,
        (
            (5120, Tile(64, 128, 128, False, 4, 4)),
            (8192, Tile(128, 128, 64, False, 4, 5)),
            (_ANY, _LARGE),
        ),
    ),
    (_ANY, ((_ANY, _LARGE),)),
)
_GATED = _LARGE._replace(pieces=2)  # a gate has half as many outputs
WIDE = 129  # rows from which tiles are copied by descriptors


@cache
def tile_for(rows: int, weight_rows: int, shared_memory: int) -> Tile:
    """Returns the tile of a product of this many rows with a matrix, with as many stages as fit into the
    shared memory."""
    by_width = next(widths for most, widths in _TABLE if rows <= most)
    tile = next(tile for most, tile in by_width if weight_rows <= most)
    return _fitted(tile, 0, shared_memory)


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
    by_width = next(widths for most, widths in _WIDE if rows <= most)
    tile = _GATED if gated else next(tile for most, tile in by_width if weight_rows <= most)
    outputs = tile.width // 2 if gated else tile.width
    return _fitted(tile, 4 * tile.rows * outputs // tile.pieces, shared_memory)


def _fitted(tile: Tile, besides: int, shared_memory: int) -> Tile:
    """Returns a tile with as many stages as fit into the shared memory besides this many bytes."""
    stage = 2 * tile.step * (tile.rows + tile.width)
    return tile._replace(stages=max(1, min(tile.stages, (shared_memory - _MARGIN - besides) // stage)))
