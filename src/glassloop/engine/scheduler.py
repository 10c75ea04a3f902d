"""The scheduler: which rows the next step computes.

There is one budget of rows and there are no phases: what a branch still has to compute is its tokens less
those in the tree. Tasks come in order (priority, then arrival). Those that wait for one token go first, so a
long prompt costs the others one step of bounded size and no more; prompts get the rows that are left. A
quarter of these is kept for prompts that need less than the first one still does, so a short prompt does not
wait for the end of a long one. Under memory pressure the youngest task gives up its pages and is resumed
later, with the same output, since what its tokens are never depends on what was in the cache.

A task may need another program than the forward pass for its rows (`RowProgram`): a step has at most one such
call, whose rows come out of the same budget.

While several clients have tasks, they take turns (engine/turns.py): the budget is one of time then.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Sequence

from glassloop.engine.tasks.masked import MaskedBranch
from glassloop.engine.tasks.task import PlannedCall, RowProgram, Task, Work
from glassloop.engine.tree import KVTree, NoRoom
from glassloop.engine.turns import Turns
from glassloop.ops.protocol import Ops

_MOST_FAILURES = 8  # times that a task alone may find no room before it is too large
_LONGEST_STEP = 0.25  # seconds that a step with prompts may take on a server
_SHORT_STEP = 0.05  # seconds that it may take while several clients have work
_SCORED_ROWS = 64  # rows with logits of one branch: they are as wide as the vocabulary


class Scheduler:
    def __init__(self, tree: KVTree, ops: Ops, most_running: int) -> None:
        self._tree = tree
        self._ops = ops  # whose limits of rows hold
        self.most_running = most_running
        self.waiting: list[Task] = []  # in order
        self.running: list[Task] = []  # in order; these hold pages
        self._preemptions = 0  # so far
        self._may_preempt = True
        self._masked: list[Task] = []  # the tasks with masked rows, waiting or running, in order of arrival
        self._by_owner: dict[str, set[Task]] = {}  # all tasks that wait or run
        self.too_large: list[Task] = []  # tasks for which there is no room, even alone; the loop ends them
        self._failures: dict[Task, tuple[int, int]] = {}  # of tasks alone: at which length, how many times
        self.turns = Turns()

    def add(self, task: Task, running: bool = False) -> None:
        queue = self.running if running else self.waiting
        insort(queue, task, key=lambda each: each.order)
        self._by_owner.setdefault(task.request.owner, set()).add(task)
        if task.masked and task not in self._masked:
            self._masked.append(task)

    def remove(self, task: Task) -> None:
        """Releases the pages of a task and takes it out of its queue, if it is in one."""
        for branch in task.branches:
            branch.leave(self._tree)
        for queue in (self.running, self.waiting):
            if task in queue:
                queue.remove(task)
        if task.masked and task in self._masked:
            self._masked.remove(task)
        own = self._by_owner.get(task.request.owner, set())
        own.discard(task)
        if not own:
            self._by_owner.pop(task.request.owner, None)
        self.turns.forget(task)
        self._failures.pop(task, None)

    def plan(self) -> list[PlannedCall]:
        """Plans the rows of the next step. The result is empty if no task has anything to compute, or none
        has room for it."""
        works = self._works([], set())
        self.turns.rows = _rows_of(works)
        return _calls(works, bool(self._masked) and any(work.view is not None for work in works))

    @property
    def plans_ahead(self) -> bool:
        """Whether a step can be planned while another one is under way: no task needs a program or has masked
        rows."""
        if self._masked:
            return False
        for queue in (self.running, self.waiting):
            for task in queue:
                if task.program is not None:
                    return False
        return True

    def plan_ahead(self, tasks: Sequence[Task], under_way: set[Task]) -> list[Work]:
        """Plans the step after one that is under way, of which the tasks `under_way` want results. Some of
        them get a row for the token that it will choose, which a promise stands for; the others get none, and
        all other tasks as in `plan`. The result is empty if there is no room without preempting a task."""
        works: list[Work] = []
        self._may_preempt = False
        try:
            for task in tasks:
                path = task.branches[0].path
                assert path is not None
                first = path.length
                works.append(Work(task, path, first, [self._tree.promise(path)], 1, None))
            works = self._works(works, under_way)
            self.turns.rows = _rows_of(works)
            return works
        except NoRoom:
            for work in works:
                self._tree.cut(work.path, work.first)
            return []
        finally:
            self._may_preempt = True

    def _works(self, works: list[Work], planned: set[Task]) -> list[Work]:
        """Adds the rows of the tasks that are not planned already, and have something to compute."""
        # With little memory it may be that nobody has room in turn. Then the oldest task goes first.
        if len(self._by_owner) > 1 and self._works_in_turn(works, set(planned)):
            return works
        ready = [task for task in self.running if task not in planned] if planned else self.running
        ready = [task for task in ready if task.program is None and _waits_for_a_token(task)]
        spare = self._ops.step_rows - len(works) - sum([len(task.branches) for task in ready])
        preemptions = self._preemptions
        kept = self._due_rows(spare) if self._masked else 0
        for task in ready:
            # An older task may have taken its pages meanwhile. Searching for each in the list takes a
            # millisecond with 256 of them.
            if self._preemptions == preemptions or task in self.running:
                guess = task.guess(spare - kept)
                if self._add_work(task, guess, self._ops.step_rows, planned, works):
                    spare -= len(guess)
        if self._masked:
            spare = self._add_passes(spare, planned, works)
        if len(planned) < len(self.running) or self.waiting:
            room = self._prompt_rows if not works else min(spare, self._ops.rows_beside)
            if room > 0:
                self._add_prompts(room, planned, works)
        return works

    @property
    def _prompt_rows(self) -> int:
        """The number of rows of a step that has prompts only. A client that comes waits for its end, so on a
        server it is bounded in time; Python and the terminal have no other clients."""
        if not self._by_owner or "" in self._by_owner:
            return self._ops.step_rows
        return self.turns.rows_in(_SHORT_STEP if self.turns.is_shared else _LONGEST_STEP, self._ops.step_rows)

    def _works_in_turn(self, works: list[Work], planned: set[Task]) -> list[Work]:
        """Adds rows as `_works` does, for several owners: first the row of one run of each, then as many
        others as the time allows, owner by owner."""
        turns, step_rows = self.turns, self._ops.step_rows
        most = min(step_rows, len(self._by_owner) + turns.begin(self._by_owner))
        rows = Counter(work.task.request.owner for work in works)  # of a step that is planned ahead
        firsts, whole = set(rows), False
        for task in turns.in_order(self.running):
            owner = task.request.owner
            if owner in firsts or task in planned or len(task.branches) > 1 or not self._waits(task):
                continue
            if turns.owes(owner):
                continue
            guess = task.guess(min(turns.room(owner), step_rows - rows.total() - 1))
            if task in self.running and self._add_work(task, guess, step_rows, planned, works):
                rows[owner] += 1 + len(guess)
                firsts.add(owner)
        for on_account in (
            False,
            True,
        ):  # where nobody has saved anything, the one with the least debt goes on
            for owner in turns.owners:
                if turns.owes(owner):
                    continue
                for task in turns.in_order(self._by_owner[owner]):
                    left = min(turns.room(owner) + (owner in firsts) - rows[owner], most - rows.total())
                    if left <= 0 and (works or not on_account):
                        break
                    together = _is_whole(task)
                    if together and not on_account and not turns.can_overdraw:
                        continue
                    if self._is_ready(task, planned):
                        before = _rows_of(works)
                        self._add_turn(task, left, planned, works)
                        added = _rows_of(works) - before
                        rows[owner] += added
                        whole = whole or (together and added > 0)
            if works:
                break
        turns.planned(rows, firsts, whole, works)
        return works

    def _add_turn(self, task: Task, room: int, planned: set[Task], works: list[Work]) -> None:
        """Adds rows of a task: that of its next token, its next pass, or as much of its prompt as fits. Rows
        that must be computed together are added whole."""
        rows = self._ops.step_rows - _rows_of(works)
        if task.masked and not task.branches[0].pending:
            self._add_pass(task, rows, planned, works)
        elif self._waits(task):
            if len(task.branches) <= rows or not works:
                self._add_work(task, [], rows, planned, works)
        else:
            # Where all owners have prompts only, the step is not bounded by what was saved.
            most = self._ops.rows_beside if works else self._prompt_rows
            self._add_prompt(task, min(room, most) if works else most, planned, works)

    def _is_ready(self, task: Task, planned: set[Task]) -> bool:
        """Whether rows of a task can be added: it is not planned already, and runs or finds a place."""
        return task not in planned and (task in self.running or self._enter(task, planned))

    @staticmethod
    def _waits(task: Task) -> bool:
        return task.program is None and not task.masked and _waits_for_a_token(task)

    def _due_rows(self, spare: int) -> int:
        """Returns how many of the spare rows are kept for passes: drafts must not take them."""
        due = 0
        for task in self._masked:
            (branch,) = task.branches
            assert isinstance(branch, MaskedBranch)
            if task in self.running and not branch.pending:
                due += branch.rows_in_one_step
        return min(due, spare)

    def _add_passes(self, spare: int, planned: set[Task], works: list[Work]) -> int:
        """Plans the next passes of the tasks with masked rows, as far as `spare` rows go; a pass that is
        larger has a step with no other. Returns how many rows are left."""
        for task in sorted(self._masked, key=lambda each: each.order):
            spare = self._add_pass(task, spare, planned, works)
        return spare

    def _add_pass(self, task: Task, spare: int, planned: set[Task], works: list[Work]) -> int:
        # What is planned for this step is not computed yet, so no page of it can be copied.
        if task in planned or task not in self.running or task.branches[0].pending:
            return spare
        begun, room = len(works), spare
        if not works:
            (branch,) = task.branches
            assert isinstance(branch, MaskedBranch)
            room = max(self._ops.step_rows, branch.rows_in_one_step)
        if self._add_work(task, [], room, planned, works):
            spare -= sum([len(work.ids) for work in works[begun:]])
            planned.add(task)
        return spare

    def _add_prompts(self, room: int, planned: set[Task], works: list[Work]) -> None:
        """Plans `room` rows for tasks that have more than a token to compute, and admits waiting tasks."""
        counted = len(works)
        short = self._shorter_than_the_first(planned)
        kept = min(room // 4, sum(map(_pending, short)))

        def left() -> int:
            nonlocal room, counted
            room -= sum([len(work.ids) for work in works[counted:]])
            counted = len(works)
            return room

        for task in list(self.running):
            if left() <= kept:
                break
            if task not in planned and task in self.running:
                self._add_prompt(task, left() - kept, planned, works)
        while self.waiting and left() > kept:
            task = self.waiting[0]
            if not self._enter(task, planned) or not self._add_prompt(task, left() - kept, planned, works):
                break
        for task in short:
            if left() <= 0:
                break
            if task not in planned and (task in self.running or self._enter(task, planned)):
                self._add_prompt(task, left(), planned, works)

    def _make_place(self, task: Task, planned: set[Task]) -> bool:
        """Preempts the youngest task of the owner that has the most places, if that has more than the owner
        of a task that waits would have."""
        running = Counter(each.request.owner for each in self.running)
        owner, most = max(running.items(), key=lambda item: item[1])
        if most <= running[task.request.owner] + 1:
            return False
        for each in reversed(self.running):
            if each.request.owner == owner and each not in planned and each.order[0] >= task.order[0]:
                self.preempt(each)
                return True
        return False

    def _shorter_than_the_first(self, planned: set[Task]) -> list[Task]:
        """Returns the tasks of the same priority that need fewer rows than the first prompt under way still
        does, the shortest first."""
        prompts = [task for task in self.running if task not in planned]
        if not prompts:
            return []
        first, others = prompts[0], prompts[1:]
        if len(self.running) < self.most_running:
            others += self.waiting
        most = _pending(first)
        short = [task for task in others if task.order[0] == first.order[0] and _pending(task) < most]
        return sorted(short, key=_pending)

    def _enter(self, task: Task, planned: set[Task]) -> bool:
        """Moves a waiting task to the running ones, if there is a place and room for all of its tokens."""
        if len(self.running) >= self.most_running and not (
            len(self._by_owner) > 1 and self._may_preempt and self._make_place(task, planned)
        ):
            return False
        for branch in task.branches:
            branch.enter(self._tree)
        # Without room the task would only have to give way again. What it found in the tree needs none.
        if self.running and not self._tree.room_beside(_pending(task)):
            for branch in task.branches:
                branch.leave(self._tree)
            return False
        self.waiting.remove(task)
        self.add(task, running=True)
        return True

    def preempt(self, task: Task) -> None:
        for branch in task.branches:
            branch.leave(self._tree)
        self._preemptions += 1
        self.running.remove(task)
        task.preempted()
        self.add(task)

    def _add_prompt(self, task: Task, room: int, planned: set[Task], works: list[Work]) -> bool:
        """Plans rows of a task that may need a program. It has to wait if the step has another one already.

        Returns False if the task was preempted.
        """
        program = _next_program(task)
        if program is not None:
            other = next((work.program for work in works if work.program is not None), None)
            if other is not None and not (program.together and program == other):
                return True
        return self._add_work(task, [], room, planned, works)

    def _add_work(
        self, task: Task, guess: list[int], room: int, planned: set[Task], works: list[Work]
    ) -> bool:
        """Plans a task's rows, if there are pages for them or younger tasks can be made to give some up.

        Returns False if the task was preempted.
        """
        while True:
            try:
                works += self._masked_rows(task, room) if task.masked else self._rows(task, guess, room)
                planned.add(task)
                return True
            except NoRoom:
                if guess:
                    guess = []
                    continue
                if not self._may_preempt:
                    raise
                youngest = next((each for each in reversed(self.running) if each not in planned), task)
                if self.running == [task]:
                    self._count_failure(task)
                self.preempt(youngest)
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

    def _masked_rows(self, task: Task, room: int) -> list[Work]:
        """Reserves pages for about `room` rows of the plain text of a task, or for its next pass, whose rows
        are computed in one step; for none, if these do not fit into it."""
        (branch,) = task.branches
        assert isinstance(branch, MaskedBranch)
        if branch.pending:
            return self._rows(task, [], room)
        if branch.rows_in_one_step > room:
            return []
        path, first, ids, wanted, view = branch.take(self._tree, room)
        return [Work(task, path, first, ids, wanted, None, view)]

    def _rows(self, task: Task, guess: list[int], room: int) -> list[Work]:
        """Reserves pages for about `room` rows of a task's branches; for all of them, or raises NoRoom.

        Branches of one task get their wanted rows in the same step: those that have more to compute than the
        others, after a preemption, catch up with them first.
        """
        branches, works = task.branches, list[Work]()
        catching_up = len(branches) > 1 and not _waits_for_a_token(task)
        try:
            for branch in branches:
                path = branch.path
                assert path is not None
                first = path.length
                ids = branch.tokens[first : first + max(1, room)] + guess
                unwanted = branch.first_wanted - first  # rows computed only for their keys and values
                program = task.program
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
                self._tree.extend(path, ids)
                works.append(Work(task, path, first, ids, max(0, len(ids) - unwanted), program))
                room -= len(ids)
                if room <= 0 and catching_up:
                    break
        except NoRoom:
            for work in works:
                self._tree.cut(work.path, work.first)
            raise
        return works


def _calls(works: list[Work], has_views: bool) -> list[PlannedCall]:
    """Groups works by what computes them: at most one program, and the forward pass."""
    special = [work for work in works if work.program is not None]
    if not special:
        return [PlannedCall(None, works, has_views)] if works else []
    plain = [work for work in works if work.program is None]
    return [
        PlannedCall(special[0].program, special),
        *([PlannedCall(None, plain, has_views)] if plain else []),
    ]


def _rows_of(works: Sequence[Work]) -> int:
    return sum([len(work.ids) for work in works])


def _is_whole(task: Task) -> bool:
    """Whether the next rows of a task have to be in one step: those of beams, and of a pass over masks."""
    return len(task.branches) > 1 or (task.masked and not task.branches[0].pending)


def _pending(task: Task) -> int:
    """Returns how many rows a task has to compute; for a waiting one, as if none of them were in the tree."""
    return sum([branch.pending for branch in task.branches])


def _next_program(task: Task) -> RowProgram | None:
    """Returns what computes the task's next rows; None: the forward pass."""
    if task.program is None:
        return None
    (branch,) = task.branches
    return task.program if branch.pending <= len(branch.tokens) - branch.first_wanted else None


def _waits_for_a_token(task: Task) -> bool:
    for branch in task.branches:  # noqa: SIM110  (a generator would cost as much as all the rest)
        if branch.pending != 1:
            return False
    return True
