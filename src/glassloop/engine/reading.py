"""A reading: known tokens are computed, and what a program gives for some of them is handed over.

Prompt scores, explanations, lenses and embeddings are readings. A reading is a task like a sampled run: the
scheduler gives it rows beside others', it can be preempted and cancelled, and what it computes lies in the KV
tree. It chooses nothing: once its last row is computed it is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event
from typing import Any

import numpy as np

from glassloop.decode.stop import Ending
from glassloop.engine.branch import Branch
from glassloop.engine.deadline import Cancelled, Deadline
from glassloop.engine.scheduler import Program, Row
from glassloop.errors import GlassloopError

# Given what was computed, piece by piece, on the engine's thread: it must be quick.
Taker = Callable[[Any], None]


class Reading:
    """The results for the tokens from the place `first` on: logits, or what `program` gives.

    `take` gets them in order, in as many pieces as there were steps: arrays of some of the rows, or, from a
    program that is run for one task alone, whatever it returns for all of them.
    """

    priority = 0
    ready = None  # it chooses no token
    preemptions = 0

    def __init__(
        self,
        ids: Sequence[int],
        first: int,
        take: Taker,
        program: Program | None = None,
        deadline: Deadline | None = None,
        after: Reading | None = None,
    ) -> None:
        """`after` is the reading whose next piece this is: it keeps the place in the queue."""
        self.program = program
        self.deadline = deadline or Deadline()
        self.is_next_piece = after is not None
        self.order: tuple[int, int] = (0, 0) if after is None else after.order  # (0, 0): until it is queued
        self.started: float | None = None
        self.ended = False
        self.branches = [Branch(list(ids), first + 1)]
        self._take = take
        self._error: Exception | None = None
        self._over = Event()

    @property
    def request(self) -> Reading:
        """A reading is nobody's part: the loop knows it by itself."""
        return self

    def wait(self) -> None:
        """Return when everything has been handed over; raise what went wrong. For the caller's thread."""
        try:
            self._over.wait()
        except BaseException:  # Ctrl-C: nobody waits any more
            self.deadline.cancel()
            raise
        if self._error is not None:
            raise self._error

    # ── what the loop asks ─────────────────────────────────────────────────────────────────────────────────

    @property
    def is_late(self) -> bool:
        return self.deadline.expired

    @property
    def abandoned(self) -> bool:
        return self.deadline.cancelled

    @property
    def timeout(self) -> float | None:
        return self.deadline.seconds

    def begin(self, now: float, cached: int) -> None:
        self.started = now

    def guess(self, rows: int) -> list[int]:
        return []

    def preempted(self) -> None:
        self.preemptions += 1

    def advance(self, rows: Sequence[Row]) -> None:
        """Logits have come."""
        first = rows[0].place
        self.give(np.array(rows[0].all[first : first + len(rows)]), len(rows))  # not the whole step's

    def give(self, found: Any, rows: int) -> None:
        """The results of so many more rows have come."""
        branch = self.branches[0]
        self._take(found)
        branch.recorded += rows
        if branch.recorded > len(branch.tokens):
            self._end(None)

    def finish(self, ending: Ending) -> None:
        """It is ended before its last row."""
        if ending.reason in ("cancelled", "timeout"):
            late = self.deadline.cancelled or self.deadline.expired
            self._end(self.deadline.error() if late else Cancelled("the engine was closed"))
        else:
            length = len(self.branches[0].tokens)
            self._end(GlassloopError(f"there is no room for {length} tokens: {ending.detail}"))

    def fail(self, error: Exception) -> None:
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        self.ended, self._error = True, error
        self._over.set()
