"""The queues of the scheduler: which tasks wait, which run, and what happens when a task finds no room.

A running task holds pages of the KV tree. Under memory pressure the youngest one gives up its pages and is
resumed later, with the same output, since what its tokens are never depends on what was in the cache.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable

from glassloop.engine.kv_nodes import NoRoom
from glassloop.engine.tasks.task import Task, Work
from glassloop.engine.tree import KVTree
from glassloop.engine.turns import Turns

_MOST_FAILURES = 8  # times that a task alone may find no room before it is too large


class StepRows:
    """The rows of a step while it is planned."""

    __slots__ = ("planned", "rows", "works")

    def __init__(self, planned: Iterable[Task] = (), works: list[Work] | None = None) -> None:
        """`works`, if given, are planned already, and others are added to the same list."""
        self.works: list[Work] = [] if works is None else works
        self.rows = 0
        for work in self.works:
            self.rows += len(work.ids)
        self.planned = set(planned)  # tasks that have their rows, or get none in this step


class TaskQueues:
    def __init__(self, tree: KVTree, most_running: int) -> None:
        self._tree = tree
        self.most_running = most_running
        self.waiting: list[Task] = []  # in order
        self.running: list[Task] = []  # in order; these hold pages
        self.too_large: list[Task] = []  # tasks for which there is no room, even alone; the loop ends them
        self.turns = Turns()
        self._special: list[Task] = []  # the tasks with a program or passes, waiting or running, as they came
        self._by_owner: dict[str, set[Task]] = {}  # all tasks that wait or run
        self._preemptions = 0  # so far
        self._may_preempt = True
        self._failures: dict[Task, tuple[int, int]] = {}  # of tasks alone: at which length, how many times

    def add(self, task: Task, running: bool = False) -> None:
        queue = self.running if running else self.waiting
        insort(queue, task, key=lambda each: each.order)
        self._by_owner.setdefault(task.request.owner, set()).add(task)
        if not task.is_plain and task not in self._special:
            self._special.append(task)

    def remove(self, task: Task) -> None:
        """Releases the pages of a task and takes it out of its queue, if it is in one."""
        for branch in task.branches:
            branch.leave(self._tree)
        for queue in (self.running, self.waiting, self._special):
            if task in queue:
                queue.remove(task)
        tasks = self._by_owner.get(task.request.owner, set())
        tasks.discard(task)
        if not tasks:
            self._by_owner.pop(task.request.owner, None)
        self.turns.forget(task)
        self._failures.pop(task, None)

    def preempt(self, task: Task) -> None:
        for branch in task.branches:
            branch.leave(self._tree)
        self._preemptions += 1
        self.running.remove(task)
        task.preempted()
        self.add(task)

    def _is_ready(self, task: Task, step: StepRows) -> bool:
        """Returns whether rows of a task can be added: it is not planned already, and runs or finds a
        place."""
        return task not in step.planned and (task in self.running or self._enter(task, step))

    def _enter(self, task: Task, step: StepRows) -> bool:
        """Moves a waiting task to the running ones, if there is a place and room for all of its tokens."""
        if len(self.running) >= self.most_running and not (
            len(self._by_owner) > 1 and self._may_preempt and self._make_place(task, step)
        ):
            return False
        for branch in task.branches:
            branch.enter(self._tree)
        # Without room the task would only have to give way again. What it found in the tree needs none.
        if self.running and not self._tree.room_beside(task.pending):
            for branch in task.branches:
                branch.leave(self._tree)
            return False
        self.waiting.remove(task)
        self.add(task, running=True)
        return True

    def _make_place(self, task: Task, step: StepRows) -> bool:
        """Preempts the youngest task of the owner that has the most places, if that has more than the owner
        of a task that waits would have."""
        running = Counter(each.request.owner for each in self.running)
        owner, most = max(running.items(), key=lambda item: item[1])
        if most <= running[task.request.owner] + 1:
            return False
        for each in reversed(self.running):
            if each.request.owner == owner and each not in step.planned and each.order[0] >= task.order[0]:
                self.preempt(each)
                return True
        return False

    def _add_rows(self, task: Task, guess: list[int], room: int, step: StepRows) -> bool:
        """Adds the next rows of a task, if there are pages for them or younger tasks can be made to give some
        up. Returns False if the task was preempted."""
        while True:
            try:
                works = task.next_rows(self._tree, guess, room)
                step.works += works
                for work in works:
                    step.rows += len(work.ids)
                step.planned.add(task)
                return True
            except NoRoom:
                if guess:
                    guess = []
                    continue
                if not self._may_preempt:
                    raise
                youngest = next((each for each in reversed(self.running) if each not in step.planned), task)
                is_alone = self.running == [task]
                self.preempt(youngest)
                if is_alone:
                    self._count_failure(task)
                if youngest is task:
                    return False

    def _count_failure(self, task: Task) -> None:
        """Notes that a task that runs alone has no room. If that happens again and again at the same length,
        it computes the same rows each time and never gets any further: it is too large."""
        length = sum([len(branch.tokens) for branch in task.branches])
        before, times = self._failures.get(task, (length, 0))
        self._failures[task] = length, times + 1 if before == length else 1
        if self._failures[task][1] >= _MOST_FAILURES:
            self.too_large.append(task)

    def tries_again(self, task: Task) -> bool:
        """Returns whether a task that found no room alone is to be tried again."""
        return task in self._failures
