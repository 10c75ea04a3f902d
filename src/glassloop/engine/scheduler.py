"""The scheduler: which rows the next step computes.

There is one budget of rows and there are no phases: what a branch still has to compute is its tokens less
those in the tree. Tasks come in order (priority, then arrival). Those that wait for one token go first, so a
long prompt costs the others one step of bounded size and no more; prompts get the rows that are left. A
quarter of these is kept for prompts that need less than the first one still does, so a short prompt does not
wait for the end of a long one. Under memory pressure the youngest task gives up its pages and is resumed
later, with the same output, since what its tokens are never depends on what was in the cache.

A task may need another program than the forward pass for its rows (`Program`): a step has at most one such
call, whose rows come out of the same budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from glassloop.decode.chosen import Chosen
from glassloop.decode.decoder import Decoder
from glassloop.decode.stop import Ending
from glassloop.engine.branch import Branch
from glassloop.engine.tree import KVTree, NoRoom, Path
from glassloop.ops.protocol import Forward
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


class Program(NamedTuple):
    """A computation over rows that is not the forward pass to the logits."""

    compute: Forward
    together: bool  # it gives an array of the wanted rows, so several tasks can share a call


class Asker(Protocol):
    """What the loop needs to know about the request that a task belongs to."""

    started: float | None  # when the first of its tokens was computed

    @property
    def is_late(self) -> bool: ...

    @property
    def abandoned(self) -> bool: ...

    @property
    def timeout(self) -> float | None: ...

    def begin(self, now: float, cached: int) -> None:
        """Its first step has been planned; so many of its tokens were in the tree."""


class Task(Protocol):
    """A sampled run, a beam search or a reading while it is being made."""

    order: tuple[int, int]  # the smallest goes first

    @property
    def request(self) -> Asker: ...

    @property
    def program(self) -> Program | None:
        """What computes the rows whose results it wants; None: the forward pass."""

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
    wanted: int  # of how many of the last rows the results are needed
    program: Program | None  # what computes them; None: the forward pass


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
        """The rows of the next step. Empty: no task has anything to compute, or none has room for it."""
        works: list[Work] = []
        planned: set[Task] = set()
        ready = [task for task in self.running if task.program is None and _waits_for_a_token(task)]
        spare = STEP_ROWS - sum([len(task.branches) for task in ready])
        for task in ready:
            if task in self.running:  # nobody older has taken its pages meanwhile
                guess = task.guess(spare)
                if self._add_work(task, guess, STEP_ROWS, planned, works):
                    spare -= len(guess)
        if len(planned) == len(self.running) and not self.waiting:
            return works
        room = STEP_ROWS if not works else min(spare, _ROWS_BESIDE)
        if room > 0:
            self._add_prompts(room, planned, works)
        return works

    def _add_prompts(self, room: int, planned: set[Task], works: list[Work]) -> None:
        """Plan `room` rows for tasks that have more than a token to compute, and let waiting tasks in."""
        begun = len(works)
        short = self._shorter_than_the_first(planned)
        kept = min(room // 4, sum(map(_pending, short)))

        def left() -> int:
            return room - sum([len(work.ids) for work in works[begun:]])

        for task in list(self.running):
            if left() <= kept:
                break
            if task in self.running and task not in planned:
                self._add_prompt(task, left() - kept, planned, works)
        while self.waiting and left() > kept and self._may_enter(self.waiting[0]):
            task = self.waiting[0]
            self._enter(task)
            if not self._add_prompt(task, left() - kept, planned, works):
                break
        for task in short:
            if task in planned:
                continue
            if left() <= 0:
                break
            if task in self.waiting:
                if not self._may_enter(task):
                    continue
                self._enter(task)
            self._add_prompt(task, left(), planned, works)

    def _shorter_than_the_first(self, planned: set[Task]) -> list[Task]:
        """The tasks, of the same priority, that need fewer rows than the first prompt under way still does;
        the shortest first."""
        prompts = [task for task in self.running if task not in planned]
        if not prompts:
            return []
        first, others = prompts[0], prompts[1:]
        if len(self.running) < self.most_running:
            others += self.waiting
        most = _pending(first)
        short = [task for task in others if task.order[0] == first.order[0] and _pending(task) < most]
        return sorted(short, key=_pending)

    def _may_enter(self, task: Task) -> bool:
        """Whether there is a place for one more task, and room: else it would only have to go again."""
        if len(self.running) >= self.most_running:
            return False
        most = sum([len(branch.tokens) for branch in task.branches])
        return not self.running or self._tree.room_beside(most)

    def _enter(self, task: Task) -> None:
        for branch in task.branches:
            branch.enter(self._tree)
        self.waiting.remove(task)
        self.add(task, running=True)

    def _add_prompt(self, task: Task, room: int, planned: set[Task], works: list[Work]) -> bool:
        """As `_add_work`, for a task that may need a program: then it has to wait if there is another one."""
        program = _next_program(task)
        other = next((work.program for work in works if work.program is not None), None)
        if program is not None and other is not None and not (program.together and program == other):
            return True
        return self._add_work(task, [], room, planned, works)

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
                program = task.program
                if program is not None and first < branch.recorded - 1:
                    ids = ids[: branch.recorded - 1 - first]  # what comes before is computed as any prompt
                    program = None
                elif program is None and len(ids) > _SCORED_ROWS:  # logits of many rows: a few at a time
                    ids = ids[: max(0, branch.recorded - 1 - first) + max(_SCORED_ROWS, 1 + len(guess))]
                self._tree.extend(path, ids)
                wanted = max(0, first + len(ids) - branch.recorded + 1)
                works.append(Work(task, path, first, ids, wanted, program))
                room -= len(ids)
                if room <= 0:
                    break
        except NoRoom:
            for work in works:
                self._tree.cut(work.path, work.first)
            raise
        return works


def _pending(task: Task) -> int:
    """How many rows a task has to compute; of one that waits, as if nothing of it were in the tree."""
    return sum([branch.pending for branch in task.branches])


def _next_program(task: Task) -> Program | None:
    """What the task's next rows are computed by; None: the forward pass."""
    if task.program is None:
        return None
    (branch,) = task.branches
    return task.program if branch.pending <= len(branch.tokens) - branch.recorded + 1 else None


def _waits_for_a_token(task: Task) -> bool:
    for branch in task.branches:  # noqa: SIM110  (a generator would cost as much as all the rest)
        if branch.pending != 1:
            return False
    return True
