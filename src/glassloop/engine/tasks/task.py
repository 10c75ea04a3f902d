"""A task: a sampled run, a beam search or a reading while it is being computed, as the loop sees it.

The scheduler plans a step as calls of works (`PlannedCall`, `Work`), the loop computes them and hands every
task the rows of its results (`WantedRow`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from glassloop.decode.chosen import Chosen
from glassloop.decode.decoder import Decoder
from glassloop.decode.stage import OwnTime
from glassloop.decode.stop import Ending
from glassloop.engine.branch import Branch
from glassloop.engine.tree import KVPath
from glassloop.ops.batch import Batch
from glassloop.ops.protocol import Forward


@dataclass
class Counters:
    """Totals since the start of a loop."""

    steps: int = 0
    rows: int = 0
    finished: int = 0  # requests
    readings: int = 0
    prompt_tokens: int = 0  # of finished requests
    prompt_tokens_cached: int = 0  # of these: they were in the KV tree
    forward_seconds: float = 0.0
    step_seconds: float = 0.0


CANCELLED = Ending("cancelled", "by the caller")


class WantedRow(NamedTuple):
    """One wanted row of a call's results."""

    results: Any  # of the whole call: the logits, [rows, vocabulary], or what a program returned
    place: int
    chosen: Chosen | Exception | None = None  # the token, if the loop has chosen it already

    @property
    def logits(self) -> Any:
        return self.results[self.place]


class RowProgram(NamedTuple):
    """A computation over rows that is not the forward pass to the logits."""

    compute: Forward
    together: bool  # it returns an array of the wanted rows, so several tasks can share a call


class Asker(Protocol):
    """The request that a task belongs to, as the loop sees it."""

    started: float | None  # when its first step was planned
    owner: str  # the client whose request it is
    own_time: OwnTime  # that the stages of users took for its tokens in this step

    def overdue(self) -> Ending | None:
        """Returns how the request has to end now, if its time is up or its result is not wanted any more."""

    def begin(self, now: float, cached: int) -> None:
        """Notes that the first step has been planned; `cached` tokens were found in the tree."""

    def count(self, counters: Counters) -> None:
        """Counts the request, which has ended."""


class Task(Protocol):
    order: tuple[int, int]  # the smallest goes first
    masked: bool  # whether it computes masked rows: its only branch is a `MaskedBranch`

    @property
    def request(self) -> Asker: ...

    @property
    def program(self) -> RowProgram | None:
        """The program that computes the rows whose results the task wants; None: the forward pass."""

    @property
    def branches(self) -> Sequence[Branch]:
        """The sequences of the task. They advance together."""

    @property
    def decoder(self) -> Decoder | None:
        """The decoder that chooses a token from the next wanted row, or None if the task needs the row
        itself: to score a known token, or to compare beams."""

    @property
    def ended(self) -> bool: ...

    def guess(self, rows: int) -> list[int]:
        """Returns at most `rows` draft tokens, to be computed along with the last token."""

    def runs_ahead(self, beside: int) -> bool:
        """Returns whether the row after one that is being computed, beside so many others, can be computed
        before the token between them is known."""

    def preempted(self) -> None:
        """Notes that the task has given up its pages and waits again."""

    def advance(self, rows: Sequence[WantedRow]) -> None:
        """Takes the results of the next wanted rows."""

    def finish(self, ending: Ending) -> None:
        """Ends the task before its time, with what it has."""

    def fail(self, error: Exception) -> None: ...


class View(NamedTuple):
    """What rows see and where they stand, if they are not a plain continuation of a text."""

    positions: list[int]
    reach: list[int]  # how many slots each row sees
    adapters: list[int]  # what acts on each row; 0: nothing


class Work(NamedTuple):
    """Rows of one branch in the next step."""

    task: Task
    path: KVPath
    first: int  # slot of the first row, which is its position unless there is a view
    ids: list[int]
    wanted: int  # how many of the last rows have results that the task needs
    program: RowProgram | None  # what computes them; None: the forward pass
    view: View | None = None  # None: each row sees what is before it


class PlannedCall(NamedTuple):
    """Works that are computed together."""

    program: RowProgram | None  # None: the forward pass
    works: list[Work]
    has_views: bool = False  # whether a work has a view

    def batch(self) -> Batch:
        ids, wanted = [work.ids for work in self.works], [work.wanted for work in self.works]
        firsts, tables = [work.first for work in self.works], [work.path.table for work in self.works]
        if max(map(len, ids)) == 1 == min(wanted):
            made = Batch.one_each([token for (token,) in ids], firsts, tables)
        else:
            made = Batch.of([*zip(tables, firsts, ids, strict=True)], wanted)
        if self.has_views:
            return self._with_views(made)
        if not any(work.path.adapter for work in self.works):
            return made
        numbers = [number for work in self.works for number in [work.path.adapter] * len(work.ids)]
        return made._replace(adapters=numbers)

    def _with_views(self, batch: Batch) -> Batch:
        positions, reach, adapters = list[int](), list[int](), list[int]()
        for work in self.works:
            slots = range(work.first, work.first + len(work.ids))
            plain = View([*slots], [slot + 1 for slot in slots], [work.path.adapter] * len(slots))
            view = work.view or plain
            positions += view.positions
            reach += view.reach
            adapters += view.adapters
        return batch._replace(positions=positions, reach=reach, adapters=adapters if any(adapters) else ())


def places_of(works: Sequence[Work]) -> Iterator[tuple[int, Work]]:
    """Yields the works with the place of their first wanted row among the results."""
    at = 0
    for work in works:
        yield at, work
        at += work.wanted
