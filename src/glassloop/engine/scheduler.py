"""The scheduler: who computes what in the next step.

There is one budget of rows and there are no phases: what a branch still has to compute is its tokens less
those in the tree. Tasks come in order (priority, then arrival). Those that wait for one token go first, so a
long prompt costs the others one step of bounded size and no more; prompts get the rows that are left. Under
memory pressure the youngest task gives up its pages and is resumed later, with the same output, since what
its tokens are never depends on what was in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from glassloop.decode.decoder import Decoder
from glassloop.decode.stop import Ending
from glassloop.engine.branch import Branch
from glassloop.engine.request import Request
from glassloop.engine.tree import KVTree, NoRoom, Path
from glassloop.ops.chosen import Chosen
from glassloop.ops.quant import Float32

STEP_ROWS = 512  # of one forward pass
_ROWS_BESIDE = 128  # for prompts, while somebody else waits for his next token
_SCORED_ROWS = 64  # rows with logits of one branch: they are as wide as the vocabulary


class Row(NamedTuple):
    """One of the rows of a step that logits were asked for."""

    all: Float32
    place: int
    chosen: Chosen | Exception | None = None  # if the branch's own choice was made along with others'

    @property
    def logits(self) -> Float32:
        one: Float32 = self.all[self.place]
        return one


class Task(Protocol):
    """A sampled run or a beam search while it is being made."""

    request: Request
    order: tuple[int, int]  # the smallest goes first

    @property
    def branches(self) -> Sequence[Branch]:
        """They compute together."""

    @property
    def ready(self) -> Decoder | None:
        """Who chooses from the first row of logits to come, if that is all there is to do with it."""

    @property
    def ended(self) -> bool: ...

    def guess(self, rows: int) -> list[int]:
        """Tokens that may come next, to be computed along with the last one: at most `rows`."""

    def preempted(self) -> None: ...

    def advance(self, rows: Sequence[Row]) -> None:
        """Logits have come: move on by a token, or by several."""

    def finish(self, ending: Ending) -> None: ...

    def fail(self, error: Exception) -> None: ...


class Work(NamedTuple):
    task: Task
    path: Path
    first: int  # position of the first row
    ids: list[int]
    wanted: int  # of how many of the last rows the logits are needed


class Scheduler:
    def __init__(self, tree: KVTree, most_running: int) -> None:
        self._tree = tree
        self.most_running = most_running
        self.waiting: list[Task] = []  # in order
        self.running: list[Task] = []  # in order; these hold pages

    def add(self, task: Task, running: bool = False) -> None:
        queue = self.running if running else self.waiting
        queue.append(task)
        queue.sort(key=lambda each: each.order)

    def remove(self, task: Task) -> None:
        for branch in task.branches:
            branch.leave(self._tree)
        queue = self.running if task in self.running else self.waiting
        queue.remove(task)

    def plan(self) -> list[Work]:
        """The rows of the next step. Empty: nobody has anything to compute, or nobody has room for it."""
        works: list[Work] = []
        planned: set[Task] = set()
        ready = [task for task in self.running if _waits_for_a_token(task)]
        spare = STEP_ROWS - sum([len(task.branches) for task in ready])
        for task in ready:
            if task in self.running:  # nobody older has taken its pages meanwhile
                guess = task.guess(spare)
                if self._add_work(task, guess, STEP_ROWS, planned, works):
                    spare -= len(guess)
        if len(planned) == len(self.running) and not self.waiting:
            return works
        room = STEP_ROWS if not works else min(spare, _ROWS_BESIDE)
        for task in list(self.running):
            if room <= 0:
                return works
            if (
                task in self.running
                and task not in planned
                and self._add_work(task, [], room, planned, works)
            ):
                room -= sum(len(work.ids) for work in works if work.task is task)
        while self.waiting and room > 0 and len(self.running) < self.most_running:
            task = self.waiting[0]
            most = sum(len(branch.tokens) for branch in task.branches)
            if self.running and not self._tree.room_beside(most):
                break  # it would only have to go again
            for branch in task.branches:
                branch.enter(self._tree)
            self.waiting.remove(task)
            self.add(task, running=True)
            if not self._add_work(task, [], room, planned, works):
                break
            room -= sum(len(work.ids) for work in works if work.task is task)
        return works

    def preempt(self, task: Task) -> None:
        for branch in task.branches:
            branch.leave(self._tree)
        self.running.remove(task)
        task.preempted()
        self.add(task)

    def _add_work(
        self, task: Task, guess: list[int], room: int, planned: set[Task], works: list[Work]
    ) -> bool:
        """Plan a task's rows, if there are pages for them or younger tasks can be made to give some up."""
        while True:
            try:
                works += self._rows(task, guess, room)
                planned.add(task)
                return True
            except NoRoom:
                if guess:
                    guess = []
                    continue
                youngest = next((each for each in reversed(self.running) if each not in planned), task)
                self.preempt(youngest)
                if youngest is task:
                    return False

    def _rows(self, task: Task, guess: list[int], room: int) -> list[Work]:
        """All or nothing."""
        together = _waits_for_a_token(task)
        works: list[Work] = []
        try:
            for branch in task.branches:
                if not together and branch.pending == 1:
                    continue  # beams choose together: this one waits until the others have caught up
                path = branch.path
                assert path is not None
                first = path.length
                ids = branch.tokens[first : first + room] + guess
                if len(ids) > _SCORED_ROWS:  # where logits of many rows are asked for, a few rows at a time
                    ids = ids[: max(0, branch.recorded - 1 - first) + max(_SCORED_ROWS, 1 + len(guess))]
                self._tree.extend(path, ids)
                wanted = max(0, first + len(ids) - branch.recorded + 1)
                works.append(Work(task, path, first, ids, wanted))
                room -= len(ids)
                if room <= 0:
                    break
        except NoRoom:
            for work in works:
                self._tree.cut(work.path, work.first)
            raise
        return works


def _waits_for_a_token(task: Task) -> bool:
    for branch in task.branches:  # noqa: SIM110  (a generator would cost as much as all the rest)
        if branch.pending != 1:
            return False
    return True
