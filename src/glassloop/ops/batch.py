"""A batch: the rows of one forward pass. Prefill, decode and verification of drafts all consist of rows.

Each row is a token at a position of a branch. The rows of one branch are adjacent, in order of position, and
form a `Span`, which has the table of the pages where the keys and values of the branch lie.

A row's slot is where its key and value lie in the branch: `span.first` plus its place in the span. Attention
goes by slots, rotation by positions. The two are equal and every row sees the slots up to its own, unless the
batch has `reach`: then each row says how many slots it sees, and its position is any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from glassloop.errors import GlassloopError

Int32 = NDArray[np.int32]

PAGE = 32  # tokens in one page of the cache
MOST_POSITIONS = 1 << 22  # that a row may have where positions are not slots; angles are tabulated up to them


class Span(NamedTuple):
    """Rows `start` to `stop` of a batch: the tokens of one branch from slot `first` on."""

    start: int
    stop: int
    first: int
    pages: Int32  # [groups, n] the branch's pages, from slot 0 to at least `length`

    @property
    def length(self) -> int:
        """How many tokens of the branch are in the cache once this span is computed."""
        return self.first + self.stop - self.start


class Batch(NamedTuple):
    tokens: list[int]  # of each row
    positions: list[int]  # of each row
    spans: list[Span]
    wanted: list[int]  # the rows whose logits are computed
    # The adapter that acts on each row, 0 for none; empty if no row has one.
    adapters: Sequence[int] = ()
    # How many slots of its branch each row attends to, from slot 0 on; its own is among them. Empty: every
    # row sees the slots up to its own (`slot + 1`), and positions are slots.
    reach: Sequence[int] = ()
    # Choices under way (`ops/rows.py:Started`): a row with the token -1 - n has what they predict for line n.
    after: Any = None

    @staticmethod
    def of(work: Sequence[tuple[Int32, int, Sequence[int]]], wanted: Sequence[int] | None = None) -> Batch:
        """Makes a batch from (page table, first position, tokens) of each branch.

        Logits are computed for the last `wanted` tokens of each branch, by default for the last one.
        """
        tokens: list[int] = []
        positions: list[int] = []
        spans: list[Span] = []
        rows: list[int] = []
        wanted_rows = [1] * len(work) if wanted is None else wanted
        for (pages, first, ids), last in zip(work, wanted_rows, strict=True):
            start, stop = len(tokens), len(tokens) + len(ids)
            tokens.extend(ids)
            positions.extend(range(first, first + len(ids)))
            spans.append(Span(start, stop, first, pages))
            rows.extend(range(stop - last, stop))
        return Batch(tokens, positions, spans, rows)

    @staticmethod
    def one_each(tokens: list[int], positions: list[int], tables: Sequence[Int32]) -> Batch:
        """Makes a batch of one token for each branch, all of whose logits are computed."""
        rows = range(len(tokens))
        spans = [*map(Span, rows, range(1, len(tokens) + 1), positions, tables)]
        return Batch(tokens, positions, spans, [*rows])


class BatchError(GlassloopError):
    """A batch with a number that is out of range. Nothing of it was computed."""


def check_spans(batch: Batch, groups: int) -> None:
    """Raises unless the spans cover the batch's rows and lie within their page tables. The op set checks the
    tokens, the positions and the entries of the tables."""
    at = 0
    for number, (start, stop, first, pages) in enumerate(batch.spans):
        fits = pages.ndim == 2 and len(pages) == groups and pages.dtype == np.int32
        if not fits or not pages.flags.c_contiguous:
            raise BatchError(
                f"span {number} has a page table of {pages.dtype} {pages.shape}, of {groups} groups"
            )
        if start != at or stop <= start:
            raise BatchError(f"span {number} has the rows {start} to {stop}; a row from {at} on is expected")
        if not 0 <= first <= pages.shape[1] * PAGE - (stop - start):
            raise BatchError(
                f"span {number} has {stop - start} tokens from position {first} on; its page table has"
                f" {pages.shape[1]} pages"
            )
        at = stop
    if not at or len(batch.tokens) != at or len(batch.positions) != at:
        raise BatchError(
            f"the spans have {at} rows, for {len(batch.tokens)} tokens and {len(batch.positions)} positions"
        )
    if batch.adapters and len(batch.adapters) != at:
        raise BatchError(f"the spans have {at} rows, for {len(batch.adapters)} adapters")
    if batch.reach:
        _check_reach(batch)


def _check_reach(batch: Batch) -> None:
    """Raises unless each row sees its own slot and none beyond its span, and has a position."""
    if len(batch.reach) != len(batch.tokens):
        raise BatchError(f"the batch has {len(batch.tokens)} rows, and a reach for {len(batch.reach)}")
    for span in batch.spans:
        for row in range(span.start, span.stop):
            own_slot, reach, position = span.first + row - span.start, batch.reach[row], batch.positions[row]
            if not own_slot < reach <= span.length:
                raise BatchError(
                    f"row {row} has the reach {reach}; one from {own_slot + 1} to {span.length} is expected"
                )
            if not 0 <= position < MOST_POSITIONS:
                raise BatchError(
                    f"row {row} has the position {position}; one from 0 to {MOST_POSITIONS - 1} is expected"
                )


def parts_of(batch: Batch, most: int, states: int | None = None) -> list[Batch]:
    """Divides a batch into batches of about `most` rows, or up to a half more, that give the same results
    one after another. A batch with reach, or whose wanted rows are in no order, stays whole. With recurrent
    layers, `states` is the line of page tables with their states: a part begins where one is kept."""
    rows, wanted = len(batch.tokens), batch.wanted
    count = round(rows / most)
    if count < 2 or batch.reach or wanted != sorted(wanted):
        return [batch]
    size = pages_for(-(-rows // count)) * PAGE
    if states is None:
        return [_part_of(batch, start, min(start + size, rows)) for start in range(0, rows, size)]
    starts = [0]
    for start in _starts_of_parts(batch, states):
        if start - starts[-1] >= size:
            starts.append(start)
    return [_part_of(batch, *ends) for ends in zip(starts, [*starts[1:], rows], strict=True)]


def _starts_of_parts(batch: Batch, states: int) -> Iterator[int]:
    """Yields the rows at which a part can begin: those of new spans, and those behind a kept state."""
    for span in batch.spans:
        if span.start:
            yield span.start
        for page in range(span.first // PAGE + 1, pages_for(span.length)):
            if span.pages[states, page - 1] >= 0:
                yield span.start + page * PAGE - span.first


def _part_of(batch: Batch, start: int, stop: int) -> Batch:
    spans = []
    for span in batch.spans:
        first, last = max(span.start, start), min(span.stop, stop)
        if first < last:
            spans.append(Span(first - start, last - start, span.first + first - span.start, span.pages))
    return Batch(
        batch.tokens[start:stop],
        batch.positions[start:stop],
        spans,
        [row - start for row in batch.wanted if start <= row < stop],
        batch.adapters[start:stop],
    )


def check_page(page: int, count: int) -> None:
    if not 0 <= page < count:
        raise BatchError(f"there is no page {page}; one from 0 to {count - 1} is expected")


def pages_for(tokens: int) -> int:
    return -(-tokens // PAGE)
