"""The recurrent operations of the reference op set: convolutions over the last tokens of a branch.

They are apart from `reference.py` for its length. docs/ops.md has the order of the sums.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from glassloop.ops.batch import PAGE, Batch, Span
from glassloop.ops.kv_cache import Place
from glassloop.ops.quant import Float32
from glassloop.ops.state_cache import NO_SLOT, HostStates


class LayerSlots:
    """What one layer keeps of one branch: states at borders, rows of tokens."""

    def __init__(self, pool: HostStates, span: Span, place: Place) -> None:
        group, self._layer = place
        self._pool = pool
        self._table = span.pages[group:]

    def state(self, border: int) -> Float32 | None:
        """Returns the state after the first `border` pages, which may be written; None if it is not kept."""
        slot = self._table[0, border - 1]
        return None if slot == NO_SLOT else self._pool.states[slot, self._layer]

    def row(self, position: int) -> Float32 | None:
        """Returns the row of a token, which may be written; None if it is not kept."""
        slot = self._table[1 + position % PAGE, position // PAGE]
        return None if slot == NO_SLOT else self._pool.rows[slot, self._layer]

    def rows_before(self, position: int) -> list[Float32]:
        """Returns the rows of the tokens of a page before a position in it."""
        kept = [self.row(each) for each in range(position // PAGE * PAGE, position)]
        return [row for row in kept if row is not None]


def borders_in(span: Span) -> Iterator[int]:
    """Yields the number of each border that the rows of a span reach."""
    return iter(range(span.first // PAGE + 1, span.length // PAGE + 1))


def conv(
    x: Float32, kernel: Float32, bias: Float32 | None, batch: Batch, pool: HostStates, place: Place
) -> Float32:
    """Each row is the sum of its branch's last rows, channel by channel, weighted by the kernel."""
    width, channels = kernel.shape
    out = np.empty_like(x)
    for span in batch.spans:
        slots = LayerSlots(pool, span, place)
        own = x[span.start : span.stop]
        before = np.zeros((width - 1, channels), np.float32)
        if span.first >= PAGE:
            state = slots.state(span.first // PAGE)
            assert state is not None
            before = state[: before.size].reshape(before.shape)
        in_page = [row[:channels] for row in slots.rows_before(span.first)]
        rows = np.concatenate([before, *[row[None] for row in in_page], own])  # from `lead` rows before own
        lead = width - 1 + len(in_page)
        total = np.zeros_like(own) if bias is None else np.tile(bias, (len(own), 1))
        for place_in_kernel in range(width):
            start = lead - (width - 1) + place_in_kernel
            total += kernel[place_in_kernel] * rows[start : start + len(own)]
        out[span.start : span.stop] = total
        for at, values in enumerate(own):
            row = slots.row(span.first + at)
            if row is not None:
                row[:channels] = values
        for border in borders_in(span):
            state = slots.state(border)
            if state is not None:
                end = lead + border * PAGE - span.first
                state[: before.size] = rows[end - (width - 1) : end].reshape(-1)
    return out
