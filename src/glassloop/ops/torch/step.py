"""A batch on the device: all of its numbers are checked, placed in one array, and copied there at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch

from glassloop.ops.batch import Batch, BatchError, Int32, check_page, check_spans, pages_for
from glassloop.ops.torch.device import Device
from glassloop.ops.torch.pages import TorchPages
from glassloop.ops.torch.row_tiles import AdapterTiles, Heads, TileGroup, adapter_tiles_of, tiles_of

# In numbers. Kernels are compiled once more for pointers that are not multiples of 16 bytes.
_ALIGNMENT = 32


class DeviceStep(NamedTuple):
    """One batch on the device."""

    rows: int
    wanted: int
    one_each: bool  # whether every branch has one row
    ids: dict[str, torch.Tensor]  # tokens, positions, wanted rows and adapters
    row_table: torch.Tensor  # where the page tables of the row's branch begin
    row_stride: torch.Tensor  # the number of pages in each of them
    slots: torch.Tensor  # of each row; the positions, if the batch has no reach
    reach: torch.Tensor | None
    tables: torch.Tensor
    tiles: list[TileGroup]
    pages: Sequence[TorchPages]
    adapter_tiles: AdapterTiles | None


def check_batch(batch: Batch, groups: int, tables: dict[str, int]) -> None:
    """Raises if a number of the batch is out of range. A kernel would read or write memory that is not its
    own. `tables` are the sizes of the embeddings, by what looks them up; `Numbers` checks the pages."""
    check_spans(batch, groups)
    rows = len(batch.tokens)
    if batch.wanted and (min(batch.wanted) < 0 or max(batch.wanted) >= rows):
        raise BatchError(f"rows {batch.wanted} are wanted; there are {rows}")
    positions = batch.positions if batch.reach else _slots(batch)
    if batch.positions != positions:
        wrong = next(row for row in range(rows) if batch.positions[row] != positions[row])
        raise BatchError(
            f"row {wrong} has the position {batch.positions[wrong]}; {positions[wrong]} is expected"
        )
    predicted = 0 if batch.after is None else len(batch.after.predicted)
    for name, size in tables.items():
        ids = getattr(batch, name) or [-1]
        least = -predicted if name == "tokens" else 0
        if min(ids) < least or max(ids) >= size:
            wrong = next(id for id in ids if not least <= id < size)
            raise BatchError(f"a row has the number {wrong}; one from 0 to {size - 1} is expected")


def _slots(batch: Batch) -> list[int]:
    """Returns the slot of each row: adjacent ones for the rows of a span, from its first on."""
    if len(batch.spans) == len(batch.tokens):
        return [span.first for span in batch.spans]
    return [
        *chain.from_iterable([range(first, first + stop - start) for start, stop, first, _ in batch.spans])
    ]


class Numbers:
    """The numbers of a batch, on the device and in the memory that they are copied from. The next batch takes
    the same memory; on the device it is copied there after this one is computed."""

    def __init__(self, device: Device) -> None:
        self._on = device
        self._processors = device.tma_processors
        self._copied = None if device.interpreted else torch.cuda.Event()
        self.moves = 0  # how often the array on the device has moved
        self._grow(1 << 12)
        # Of the last batch: the places of its parts, its sizes and tiles.
        self._parts: list[slice] = []
        self._sizes = 0, 0, False
        self._has_reach = False
        self._tiles: list[tuple[int, int]] = []
        self._is_adapted = False

    def upload(self, batch: Batch, pages: Sequence[TorchPages], size: int, heads: Heads) -> tuple[int, ...]:
        """Copies a batch to the device, filled up to `size` rows. Returns the units of each tile group."""
        rows, spans = len(batch.tokens), batch.spans
        filling = [0] * (size - rows)
        used = [pages_for(first + stop - start) for start, stop, first, _ in spans]
        # The page tables, only as long as they are used; then that of the filling rows, one page long.
        tables = np.concatenate(
            [span[3][group, :n] for span, n in zip(spans, used, strict=True) for group in range(len(pages))]
        )
        count = min([group.count for group in pages])
        # As unsigned numbers, negative ones are larger than any count.
        if int(tables.view(np.uint32).max()) >= count:
            check_page(int(tables.min()), count)
            check_page(int(tables.max()), count)
        strides = np.array([*used, 1], np.int32)
        starts = np.cumsum(strides * len(pages), dtype=np.int32) - strides * len(pages)
        if rows == len(spans):
            # The last of each is that of the filling rows.
            row_table, row_stride = starts[:size], strides[:size]
            if size > rows + 1:
                more = [rows] * (size - rows - 1)
                row_table, row_stride = (np.concatenate([each, each[more]]) for each in (starts, strides))
        else:
            counts = [*(span.stop - span.start for span in spans), len(filling)]
            row_table, row_stride = np.repeat(starts, counts), np.repeat(strides, counts)
        tiles = tiles_of(batch, size, heads, self._processors)
        parts: list[Any] = [
            batch.tokens + filling,
            batch.positions + filling,
            row_table,
            row_stride,
            [*batch.wanted, *range(rows, size)],
            *(() if not batch.adapters else ([*batch.adapters, *filling], *adapter_tiles_of(batch, size))),
            *([_slots(batch), batch.reach] if batch.reach else ()),  # such a batch is not filled up
            *chain.from_iterable([each[:2] for each in tiles]),
            np.append(tables, [group.count for group in pages]),
        ]
        self._sizes, self._tiles = (size, len(parts[4]), rows == len(spans)), [each[2:] for each in tiles]
        self._has_reach = bool(batch.reach)
        self._is_adapted = len(batch.adapters) > 0
        self._copy(parts)
        return tuple(each.units for each in tiles)

    @property
    def tokens(self) -> torch.Tensor:
        """The tokens of the batch that was uploaded last, on the device."""
        return self._device[self._parts[0]]

    def step(self, pages: Sequence[TorchPages]) -> DeviceStep:
        """Returns the batch that was uploaded last."""
        placed = [self._device[part] for part in self._parts]
        tokens, positions, row_table, row_stride, wanted, *tiles, _ = placed
        ids, adapter_tiles = {"tokens": tokens, "positions": positions, "wanted": wanted}, None
        if self._is_adapted:
            (ids["adapters"], *about), tiles = tiles[:4], tiles[4:]
            adapter_tiles = AdapterTiles(*about)
        slots, reach = positions, None
        if self._has_reach:
            slots, reach, *tiles = tiles
        return DeviceStep(
            *self._sizes,
            ids,
            row_table,
            row_stride,
            slots,
            reach,
            self._device[self._parts[-1].start :],
            [
                TileGroup(tiles[2 * index], tiles[2 * index + 1], *about)
                for index, about in enumerate(self._tiles)
            ],
            pages,
            adapter_tiles,
        )

    def _copy(self, parts: list[Any]) -> None:
        """Places the parts one behind the other, aligned, and copies them to the device."""
        at, self._parts = 0, []
        for part in parts:
            self._parts.append(slice(at, at + len(part)))
            at += -(-len(part) // _ALIGNMENT) * _ALIGNMENT
        if self._copied is not None:
            self._copied.synchronize()  # the previous batch may still be on its way
        if at > len(self._view):
            self._grow(2 * at)
        for place, part in zip(self._parts, parts, strict=True):
            self._view[place] = part
        self._device[:at].copy_(self._host[:at], non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def _grow(self, size: int) -> None:
        """Replaces the arrays by ones of this size."""
        self.moves += 1
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=not self._on.interpreted)
        self._device = torch.zeros(size, dtype=torch.int32, device=self._on.torch)
        self._view: Int32 = self._host.numpy()
