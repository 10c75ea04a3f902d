"""Which tile a matrix product uses. Tiles change the speed and not the bits, so the table may be anything:
that of an H200, or one that `python -m bench.gpu tiles --save` has found for another GPU and written as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from glassloop.errors import GlassloopError
from glassloop.util.shown import shown


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


class TileTable:
    """Chooses tiles from a table, with as many stages as fit into the shared memory."""

    def __init__(self, table: Table) -> None:
        self.table = table
        # The methods are called for every product of a step that is not a graph.
        self.plain, self.sliced, self.wide = cache(self._plain), cache(self._sliced), cache(self._wide)

    def _plain(self, rows: int, weight_rows: int, shared_memory: int) -> Tile:
        """Returns the tile of a product of this many rows with a matrix."""
        return _fitted(_tile_in(self.table.plain, rows, weight_rows), 0, shared_memory)

    def _sliced(self, rows: int, weight_rows: int, shared_memory: int) -> Tile:
        """Returns the tile of a product in slices, which needs twice as many accumulators; its step divides
        the 128 columns of a chunk."""
        tile = self.plain(rows, weight_rows, shared_memory)
        if tile.rows * tile.width > 64 * 128:
            return _fitted(Tile(128, 128, 128, False, 8, 3), 0, shared_memory)
        return tile._replace(step=min(tile.step, 128))

    def _wide(self, rows: int, weight_rows: int, gated: bool, shared_memory: int) -> Tile:
        """Returns the tile of a product of many rows by `wide_linear_kernel`."""
        tile = _tile_in(self.table.gated if gated else self.table.wide, rows, weight_rows)
        return _fitted(tile, output_bytes(tile, gated), shared_memory)


def _tile_in(tiles: Tiles, rows: int, weight_rows: int) -> Tile:
    """Returns the tile for so many rows of x and of the matrix."""
    by_width = next(widths for most, widths in tiles if rows <= most)
    return next(tile for most, tile in by_width if weight_rows <= most)


def output_bytes(tile: Tile, gated: bool) -> int:
    """Returns the shared memory that `wide_linear_kernel` needs for a piece of the outputs of a tile."""
    return 4 * tile.rows * (tile.width // 2 if gated else tile.width) // tile.pieces


def most_stages(tile: Tile, besides: int, shared_memory: int) -> int:
    """Returns how many stages of a tile fit into the shared memory besides this many bytes."""
    return (shared_memory - _MARGIN - besides) // (2 * tile.step * (tile.rows + tile.width))


def _fitted(tile: Tile, besides: int, shared_memory: int) -> Tile:
    """Returns a tile with as many of its stages as fit into the shared memory besides this many bytes."""
    return tile._replace(stages=max(1, min(tile.stages, most_stages(tile, besides, shared_memory))))


# ── tables as JSON ─────────────────────────────────────────────────────────────────────────────────────────


def table_text(table: Table) -> str:
    """Returns a table as JSON."""
    return json.dumps(table._asdict())


def read_table(text: str, shared_memory: int) -> Table:
    """Returns the table in a text that `table_text` has made. Raises if it is anything else, or if a tile
    does not fit into the shared memory."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GlassloopError(f"the table of tiles is not JSON: {error}") from None
    if not isinstance(fields, dict) or fields.keys() != {*Table._fields}:
        raise GlassloopError(f"the table of tiles has to have the fields {', '.join(Table._fields)}")

    def tile(each: Any, where: str) -> Tile:
        made = _tile(each, where)
        name = where.partition("[")[0]
        if (
            most_stages(made, 0 if name == "plain" else output_bytes(made, name == "gated"), shared_memory)
            < 1
        ):
            raise GlassloopError(
                f"the table of tiles: {where} does not fit into {shared_memory} bytes of shared memory"
            )
        return made

    def widths(each: Any, where: str) -> Any:
        return _limits(each, where, tile)

    return Table(**{name: _limits(fields[name], name, widths) for name in Table._fields})


def _limits(given: Any, where: str, read: Callable[[Any, str], Any]) -> Any:
    """Returns pairs of a limit and what `read` returns: the limits ascend, and the last one is `ANY`."""
    if not isinstance(given, list) or not all(isinstance(each, list) and len(each) == 2 for each in given):
        raise GlassloopError(f"the table of tiles: {where} has to be a list of pairs")
    limits = [limit for limit, _ in given]
    ascend = all(type(limit) is int for limit in limits) and limits == sorted({*limits})
    if not limits or not ascend or limits[-1] != ANY:
        raise GlassloopError(f"the table of tiles: the limits of {where} have to ascend to {ANY}")
    return tuple((limit, read(each, f"{where}[{at}]")) for at, (limit, each) in enumerate(given))


_POSSIBLE: dict[str, tuple[Any, ...]] = {
    "rows": (16, 32, 64, 128, 256),
    "width": (16, 32, 64, 128, 256),
    "step": (32, 64, 128, 256, 512),
    "swapped": (False, True),
    "warps": (1, 2, 4, 8),
    "stages": (1, 2, 3, 4, 5, 6),
    "pieces": (1, 2, 4),
}


def _tile(given: Any, where: str) -> Tile:
    """Returns a tile from a list of its fields."""
    if not isinstance(given, list) or len(given) != len(Tile._fields):
        raise GlassloopError(f"the table of tiles: {where} has to be a list of {', '.join(Tile._fields)}")
    for name, value in zip(Tile._fields, given, strict=True):
        possible = _POSSIBLE[name]
        if value not in possible or type(value) is not type(possible[0]):
            raise GlassloopError(
                f"the table of tiles: {where}.{name} is {shown(value)}; one of"
                f" {', '.join(map(str, possible))} is expected"
            )
    return Tile(*given)
