"""The cache of recurrent layers: a state for each kept border between pages, and a row for single tokens.

A recurrent layer reads the state at the start of a page, the rows of the tokens before in that page, and no
other token. What a state and a row hold is up to the layer (`model/config.py`); here they are numbers. In the
page table of a branch they have `STATE_LINES` lines after those of the groups of attention layers: for each
page the slot of the state at its end, then the slot of the row of each of its tokens. NO_SLOT means that
nothing is kept, which is right for all that the rows of a batch do not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from glassloop.ops.batch import PAGE, Batch, BatchError, Span, pages_for
from glassloop.ops.kv_cache import Pages, Place
from glassloop.ops.memory import format_bytes, memory_errors
from glassloop.ops.quant import Float32

NO_SLOT = -1
STATE_LINES = 1 + PAGE


@dataclass(frozen=True)
class StateSpec:
    """How many float32 numbers each of some recurrent layers keeps in a state and in the row of a token."""

    layers: int
    state: int
    row: int

    @property
    def state_bytes(self) -> int:
        return 4 * self.layers * self.state

    @property
    def row_bytes(self) -> int:
        return 4 * self.layers * self.row


class StatePages(Pages, Protocol):
    """A pool of slots for states and rows."""

    spec: StateSpec
    row_count: int  # `count` is that of the states


class HostStates:
    """Slots in the memory of the host, for the op sets `reference` and `native`."""

    lines = STATE_LINES

    def __init__(self, spec: StateSpec, states: int, rows: int) -> None:
        self.spec, self.count, self.row_count = spec, states, rows
        self.page_bytes = spec.state_bytes
        with memory_errors(f"{format_bytes(states * spec.state_bytes + rows * spec.row_bytes)} of states"):
            # `zeros` takes memory from the system only when a slot is first written.
            self.states: Float32 = np.zeros((states, spec.layers, spec.state), np.float32)
            self.rows: Float32 = np.zeros((rows, spec.layers, spec.row), np.float32)

    def copy(self, source: int, target: int) -> None:
        raise BatchError("slots of recurrent layers are shared and never copied")

    def read_keys(self, place: Place, span: Span) -> Float32:
        raise BatchError("a recurrent layer has no keys")


def lines_of(pages: Sequence[Pages]) -> int:
    """Returns how many lines the page table of a branch has: recurrent layers come last, if there are any."""
    return len(pages) - 1 + pages[-1].lines if pages else 0


def check_slots(batch: Batch, span: Span, at: int, states: int, rows: int) -> None:
    """Raises unless the slots of a span exist, and those that its rows read are there. `at` is the first line
    of the recurrent layers in its page table."""
    if batch.reach:
        raise BatchError("a batch has reach; recurrent layers see all that is before a row and nothing after")
    first_page, end_page = span.first // PAGE, pages_for(span.length)
    table = span.pages[at:, max(0, first_page - 1) : end_page]
    for name, slots, count in (("state", table[:1], states), ("row", table[1:], rows)):
        if slots.min() < NO_SLOT or slots.max() >= count:
            raise BatchError(f"a page table has a slot of a {name} that is not from {NO_SLOT} to {count - 1}")
    if first_page and table[0, 0] == NO_SLOT:
        raise BatchError(f"the state at position {first_page * PAGE} is not kept; a row after it needs it")
    before = span.first - first_page * PAGE
    if before and span.pages[at + 1 : at + 1 + before, first_page].min() == NO_SLOT:
        raise BatchError(f"a row before position {span.first} is not kept; the next one needs it")
