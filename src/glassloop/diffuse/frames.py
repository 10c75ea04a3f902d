"""A text while it is filled, as frames: what is known after each pass, for a terminal or a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from glassloop.trace.run import Run


class Cell(NamedTuple):
    """One place of the answer in a frame."""

    text: str | None  # of its token; None: it is masked
    changed: bool  # it was filled by this pass
    confidence: float | None  # with which it was filled


def frames(run: Run, piece: Callable[[int], str]) -> Iterator[list[Cell]]:
    """Yields the answer after each pass, up to the end of the block that the pass belongs to."""
    cells: list[Cell] = []
    for record in run.passes:
        end = record.first + record.width
        cells = [cell._replace(changed=False) for cell in cells[:end]]
        cells += [Cell(None, False, None)] * (end - len(cells))
        for taken in record.unfilled:
            cells[taken.at] = Cell(None, True, None)
        for each in record.filled:
            cells[each.at] = Cell(piece(each.id), True, each.confidence)
        yield list(cells)
