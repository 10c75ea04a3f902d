"""A task: a sampled run, a beam search or a reading while it is being computed, as the loop sees it.

The scheduler plans a step as calls of works (`PlannedCall`, `Work`), the loop computes them and hands every
task the rows of its results (`WantedRow`). Which rows come next is up to the task (`Task.next_rows`).
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
from glassloop.engine.call_plan import CallPlan, PageCopy
from glassloop.engine.kv_nodes import KVPath, NoRoom
from glassloop.engine.tree import KVTree
from glassloop.ops.batch import Batch
from glassloop.ops.protocol import Forward
from glassloop.ops.quant import Float32

_SCORED_ROWS = 64  # rows with logits of one branch: they are as wide as the vocabulary


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
    def logits(self) -> Float32:
        """The logits of this row: of a device too, whose rows come to the host when they are asked for."""
        row: Float32 = self.results[self.place]
        return row


class RowProgram(NamedTuple):
    """A computation over rows that is not the forward pass to the logits."""

    compute: Forward[Any]
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


class Task:
    """The base of all tasks. Unless a kind says otherwise, its rows are those of the known tokens of its
    branches, one after another, computed by the forward pass."""

    request: Asker
    order: tuple[int, int]  # the smallest goes first
    branches: Sequence[Branch]  # the sequences of the task, which advance together
    program: RowProgram | None = None  # what computes the rows whose results it wants; None: the forward pass
    ended = False

    @property
    def decoder(self) -> Decoder | None:
        """The decoder that chooses a token from the next wanted row, or None if the task needs the row
        itself: to score a known token, or to compare beams."""
        return None

    # ── its next rows ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_plain(self) -> bool:
        """Whether all of its rows are plain rows of the forward pass: it has no program and no passes."""
        return self.program is None

    @property
    def next_program(self) -> RowProgram | None:
        """What computes the next rows; None: the forward pass."""
        return None

    @property
    def pending(self) -> int:
        """How many rows of known tokens are to be computed; for a waiting task, as if none were cached."""
        return sum([branch.pending for branch in self.branches])

    @property
    def pass_rows(self) -> int:
        """How many rows of a pass come next, which have to be in one step; 0: none."""
        return 0

    def waits_for_a_token(self) -> bool:
        """Returns whether each branch has one row left to compute, that of its last token."""
        for branch in self.branches:  # noqa: SIM110  (a generator would cost as much as all the rest)
            if branch.pending != 1:
                return False
        return True

    def next_rows(self, tree: KVTree, guess: list[int], room: int) -> list[Work]:
        """Reserves pages for about `room` rows, and for those of the tokens `guess` after them; for all of
        them, or raises NoRoom. Returns none if the next rows have to be in one step and are more.

        Branches of one task get their wanted rows in the same step: those that have more to compute than the
        others, after a preemption, catch up with them first.
        """
        branches, works = self.branches, list[Work]()
        catching_up = len(branches) > 1 and not self.waits_for_a_token()
        try:
            for branch in branches:
                path = branch.path
                assert path is not None
                first = path.length
                ids = branch.tokens[first : first + max(1, room)] + guess
                unwanted = branch.first_wanted - first  # rows computed only for their keys and values
                program = self.program
                if catching_up or (program is not None and unwanted > 0):
                    program, most = None, unwanted
                elif program is None:
                    most = unwanted + max(_SCORED_ROWS, 1 + len(guess))
                else:
                    most = len(ids)
                if len(ids) > most:
                    ids = ids[:most]
                if not ids:
                    continue
                tree.extend(path, ids)
                works.append(Work(self, path, first, ids, max(0, len(ids) - unwanted), program))
                room -= len(ids)
                if room <= 0 and catching_up:
                    break
        except NoRoom:
            for work in works:
                tree.cut(work.path, work.first)
            raise
        return works

    def guess(self, rows: int) -> list[int]:
        """Returns at most `rows` draft tokens, to be computed along with the last token."""
        return []

    def runs_ahead(self, beside: int) -> bool:
        """Returns whether the row after one that is being computed, beside so many others, can be computed
        before the token between them is known."""
        return False

    # ── what happens to it ─────────────────────────────────────────────────────────────────────────────────

    def preempted(self) -> None:
        """Notes that the task has given up its pages and waits again."""

    def advance(self, rows: Sequence[WantedRow]) -> None:
        """Takes the results of the next wanted rows."""
        raise NotImplementedError

    def finish(self, ending: Ending) -> None:
        """Ends the task before its time, with what it has."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        raise NotImplementedError


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
    """Works that are computed together: the live tasks beside the plain data of `plan`."""

    program: RowProgram | None  # None: the forward pass
    works: list[Work]
    copies: Sequence[PageCopy] = ()
    has_views: bool = False  # whether a work has a view

    def plan(self) -> CallPlan:
        """Returns the rows of the works as plain data."""
        ids, wanted = [work.ids for work in self.works], [work.wanted for work in self.works]
        firsts, tables = [work.first for work in self.works], [work.path.table for work in self.works]
        if max(map(len, ids)) == 1 == min(wanted):
            batch = Batch.one_each([token for (token,) in ids], firsts, tables)
        else:
            batch = Batch.of([*zip(tables, firsts, ids, strict=True)], wanted)
        if self.has_views:
            batch = self._with_views(batch)
            return CallPlan(self.copies, batch)
        adapters = [work.path.adapter for work in self.works]
        if any(adapters):
            pairs = zip(adapters, ids, strict=True)
            numbers = [number for adapter, tokens in pairs for number in [int(adapter)] * len(tokens)]
            batch = batch._replace(adapters=numbers)
        return CallPlan(self.copies, batch)

    def _with_views(self, batch: Batch) -> Batch:
        positions, reach, adapters = list[int](), list[int](), list[int]()
        for work in self.works:
            slots, adapter = range(work.first, work.first + len(work.ids)), int(work.path.adapter)
            plain = View([*slots], [slot + 1 for slot in slots], [adapter] * len(slots))
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
