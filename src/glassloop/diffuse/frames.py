"""A text while it is filled, as frames: what is known after each pass, for a terminal or a page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from glassloop.decode.stop import stop_ids
from glassloop.diffuse.filling import text_length
from glassloop.record.passes import PassRecord
from glassloop.record.run import Run


class FrameCell(NamedTuple):
    """One place of the answer in a frame."""

    text: str | None = None  # of its token; None: it is masked
    id: int | None = None
    changed: bool = False  # it was filled by this pass, or taken back before it
    confidence: float | None = None  # with which it was filled; this and the next are of the record
    entropy: float | None = None
    raw_logprob: float | None = None
    logprob: float | None = None
    filled_by: int | None = None  # the number of the pass
    taken_back: str | None = None  # the token that was taken back before this pass
    reason: str | None = None  # for which it was

    def to_dict(self) -> dict[str, Any]:
        return {_NAMES.get(name, name): value for name, value in self._asdict().items()}


_NAMES = {"filled_by": "pass"}


class Frame(NamedTuple):
    """The block that a pass worked on, after the pass. What is before the block is final."""

    number: int  # of the pass
    first: int  # the place of the first cell in the answer
    cells: list[FrameCell]

    def to_dict(self) -> dict[str, Any]:
        return {"pass": self.number, "first": self.first, "cells": [cell.to_dict() for cell in self.cells]}


class Frames:
    """Makes frames of a run. In the order of the passes, each costs as much as its block is wide."""

    def __init__(self, run: Run, piece: Callable[[int], str], eos_ids: Collection[int] = ()) -> None:
        """`piece` returns the text of a token. A frame has no places after one of `eos_ids`."""
        self._run = run
        self._piece = piece
        self._ends = stop_ids(run.sampling, eos_ids)
        self._last = -1  # the number of the pass that the cells are after
        self._cells: list[FrameCell] = []

    def at(self, number: int) -> Frame:
        """Returns the frame after a pass, by its number."""
        passes, start = self._run.passes, number
        record = passes[number]

        def same_block(other: int) -> bool:
            return other >= 0 and passes[other].first == record.first

        while same_block(start - 1) and start - 1 != self._last:
            start -= 1
        if not same_block(start - 1):
            self._cells = []
        for each in passes[start : number + 1]:
            self._add(each)
        self._last = number
        length = text_length([cell.id for cell in self._cells], self._ends.__contains__)
        return Frame(number, record.first, self._cells[:length])

    def _add(self, record: PassRecord) -> None:
        kept = [cell._replace(changed=False, taken_back=None, reason=None) for cell in self._cells]
        self._cells = cells = kept[: record.width] + [FrameCell()] * (record.width - len(kept))
        for taken in record.unfilled:
            cells[taken.at - record.first] = FrameCell(
                changed=True, taken_back=self._piece(taken.id), reason=taken.why
            )
        for each in record.filled:
            place = each.at - record.first
            cells[place] = FrameCell(
                self._piece(each.id),
                each.id,
                True,
                each.confidence,
                each.entropy,
                each.raw_logprob,
                each.logprob,
                record.number,
                cells[place].taken_back,
                cells[place].reason,
            )


def frames(run: Run, piece: Callable[[int], str], eos_ids: Collection[int] = ()) -> Iterator[Frame]:
    """Yields the frame after each pass."""
    maker = Frames(run, piece, eos_ids)
    for number in range(len(run.passes)):
        yield maker.at(number)
