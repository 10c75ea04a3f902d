"""A reading: known tokens are computed, and what a program gives for some of them is handed over.

Prompt scores, explanations, lenses and embeddings are readings. A reading is a task like a sampled run: the
scheduler gives it rows beside others', it can be preempted and cancelled, and what it computes lies in the KV
tree. It chooses nothing: once its last row is computed it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event
from typing import Any

import numpy as np

from glassloop.decode.stage import OwnTime
from glassloop.decode.stop import Ending
from glassloop.engine.branch import Branch
from glassloop.engine.deadline import Cancelled, Deadline
from glassloop.engine.owner import current_owner, current_realm
from glassloop.engine.tasks.task import CANCELLED, Counters, RowProgram, Task, WantedRow
from glassloop.errors import GlassloopError
from glassloop.ops.protocol import Array
from glassloop.ops.quant import Float32

# Given what was computed, piece by piece, on the engine's thread: it must be quick.
Taker = Callable[[Any], None]


class Reading(Task):
    """The results for the tokens from the place `first` on: logits, or what `program` gives.

    `take` gets them in order, in as many pieces as there were steps: arrays of some of the rows, or, from a
    program that is run for one task alone, whatever it returns for all of them.
    """

    priority = 0

    def __init__(
        self,
        ids: Sequence[int],
        first: int,
        take: Taker,
        program: RowProgram | None = None,
        deadline: Deadline | None = None,
        after: Reading | None = None,
        adapter: int = 0,
    ) -> None:
        """`after` is the reading whose next piece this is: it keeps the place in the queue. `adapter` is the
        number of the adapter that acts on the rows; 0: none."""
        self.program = program
        self.deadline = deadline or Deadline()
        self.is_next_piece = after is not None
        self.order: tuple[int, int] = (0, 0) if after is None else after.order  # (0, 0): until it is queued
        self.started: float | None = None
        self.owner = current_owner()
        self.own_time = OwnTime()  # it runs no stages
        self.host: Callable[[Array], Float32] = np.asarray  # the op set's, once it is queued
        self.branches = [Branch(list(ids), first + 1, adapter, current_realm())]
        self._take = take
        self._error: Exception | None = None
        self._over = Event()

    @property
    def request(self) -> Reading:  # type: ignore[override]
        """A reading is a request of one task, itself."""
        return self

    def wait(self) -> None:
        """Returns when everything has been handed over, or raises what went wrong. Not for the engine."""
        try:
            self._over.wait()
        except BaseException:  # Ctrl-C: the caller has stopped waiting
            self.deadline.cancel()
            raise
        if self._error is not None:
            raise self._error

    # ── as a request ───────────────────────────────────────────────────────────────────────────────────────

    def overdue(self) -> Ending | None:
        return CANCELLED if self.deadline.cancelled or self.deadline.expired else None

    def begin(self, now: float, cached: int) -> None:
        self.started = now

    def count(self, counters: Counters) -> None:
        counters.readings += 1

    # ── as a task ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def next_program(self) -> RowProgram | None:
        branch = self.branches[0]
        return self.program if branch.pending <= len(branch.tokens) - branch.first_wanted else None

    def waits_for_a_token(self) -> bool:
        return self.program is None and super().waits_for_a_token()

    def advance(self, rows: Sequence[WantedRow]) -> None:
        results, first = rows[0].results, rows[0].place
        if self.program is None or self.program.together:
            # A copy: it must not keep the whole step's results.
            results = np.array(self.host(results[first : first + len(rows)]))
        self._take(results)
        branch = self.branches[0]
        branch.recorded += len(rows)
        if branch.recorded > len(branch.tokens):
            self._end(None)

    def finish(self, ending: Ending) -> None:
        """Ends the reading before its last row."""
        if ending.reason == "cancelled":
            self._end(self.deadline.error() if self.overdue() else Cancelled("the engine was closed"))
        else:
            length = len(self.branches[0].tokens)
            self._end(GlassloopError(f"there is no room for {length} tokens: {ending.detail}"))

    def fail(self, error: Exception) -> None:
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        self.ended, self._error = True, error
        self._over.set()
