"""Tiles of attention and of adapters: the rows of a batch that one program of a kernel computes together."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from glassloop.ops.batch import Batch, Int32

UNIT = 256  # positions whose attention is summed on its own; docs/ops.md
FEW, MANY = 16, 64  # queries of one program of attention, for short and long spans
ADAPTER_ROWS = 16  # with the same adapter that one program computes
_MOST_PARTIAL = 1 << 28  # numbers
DIVIDED = 264  # fewer programs than this leave the device idle: then each computes one unit only


class Heads(NamedTuple):
    """What the cut of a batch into tiles depends on; the largest numbers of all layers."""

    sharing: int  # query heads that share a key-value head
    kv_heads: int
    columns: int  # of a head, as attention computes them


class TileGroup(NamedTuple):
    """Tiles of attention: adjacent rows of one branch that one program computes together."""

    rows: Any  # the first row of each tile
    counts: Any  # how many rows it has
    queries: int  # rows times the query heads that share a key-value head, at most
    units: int  # how many each program computes on its own, to be merged; 0: a program computes all of them


class AdapterTiles(NamedTuple):
    """Tiles of rows with the same adapter: `counts[i]` of the rows in `order`, from `rows[i]` on."""

    order: Any
    rows: Any
    counts: Any


def adapter_tiles_of(batch: Batch, size: int) -> AdapterTiles:
    """Sorts the rows by adapter and cuts them into tiles. A batch in which every branch has one row has as
    many tiles as rows, the last ones empty, so that a graph serves any adapters."""
    order = np.argsort(np.array(batch.adapters), kind="stable")
    sorted_numbers = np.array(batch.adapters)[order]
    starts = np.flatnonzero(np.diff(sorted_numbers, prepend=-1))
    tiles = [
        (row, min(ADAPTER_ROWS, int(end) - row))
        for start, end in zip(starts, [*starts[1:], len(order)], strict=True)
        if sorted_numbers[start]
        for row in range(int(start), int(end), ADAPTER_ROWS)
    ]
    if len(batch.spans) == len(batch.tokens):
        tiles += [(0, 0)] * (size - len(tiles))
    return AdapterTiles(order, [row for row, _ in tiles] or [0], [count for _, count in tiles] or [0])


def _partial_numbers(programs: int, units: int, queries: int, heads: Heads) -> int:
    """Returns how many numbers the sums over single units take: for each query its maximum, 16 sums of
    weights and the sums of values."""
    return programs * units * queries * (1 + 16 + heads.columns)


def partial_room(tiles: TileGroup, heads: Heads) -> int:
    """Returns the numbers to make room for, for the sums over single units: those of the most programs that
    are divided so, and of 8 units or more, since making room again costs all graphs."""
    if not tiles.units:
        return 0
    most = _partial_numbers(DIVIDED, max(tiles.units, 8), max(tiles.queries, MANY), heads)
    own_partials = _partial_numbers(len(tiles.rows) * heads.kv_heads, tiles.units, tiles.queries, heads)
    return max(own_partials, min(most, _MOST_PARTIAL))


@cache
def _one_each(size: int) -> tuple[Int32, Int32]:
    """Returns the first rows and the numbers of rows of tiles of one row."""
    return np.arange(size, dtype=np.int32), np.ones(size, np.int32)


def tiles_of(batch: Batch, size: int, heads: Heads, processors: int) -> list[TileGroup]:
    """Divides the rows of short and of long spans into tiles, for a GPU with so many multiprocessors that
    launch kernels early, or 0."""
    few, many = (max(most, 1 << (heads.sharing - 1).bit_length()) for most in (FEW, MANY))
    longest = max([span.length for span in batch.spans]) if batch.reach else 1 + max(batch.positions)
    # A power of two, so that a graph serves a range of lengths.
    units = 1 << (-(-longest // UNIT) - 1).bit_length()

    def group(rows: Any, counts: Any, queries: int) -> TileGroup:
        programs = len(rows) * heads.kv_heads
        # Launch at least one program per multiprocessor, even an empty one: an idle multiprocessor would take
        # two blocks of the next product, which is launched early, and leave another one without any.
        most = max(units, -(-processors // programs))
        fits = _partial_numbers(programs, most, queries, heads) <= _MOST_PARTIAL
        divided = units > 1 and programs < DIVIDED and fits
        return TileGroup(rows, counts, queries, most if divided else 0)

    if len(batch.spans) == len(batch.tokens):
        return [group(*_one_each(size), few)]
    short = [(span.stop - span.start) * heads.sharing <= few for span in batch.spans]
    groups = []
    for queries, is_short in ((few, True), (many, False)):
        at_once = queries // heads.sharing
        spans = [span for span, each in zip(batch.spans, short, strict=True) if each is is_short]
        # Tiles that see many keys take long, so they come first: none of them is left to the end.
        tiles = sorted(
            (-(span.first + row - span.start), row, min(at_once, span.stop - row))
            for span in spans
            for row in range(span.start, span.stop, at_once)
        )
        if tiles:
            groups.append(group([row for _, row, _ in tiles], [count for _, _, count in tiles], queries))
    return groups
