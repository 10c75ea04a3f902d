"""The scheduler: which rows the next step computes.

There is one budget of rows and there are no phases: what a branch still has to compute is its tokens less
those in the tree. Tasks come in order (priority, then arrival). Those that wait for one token go first, so a
long prompt costs the others one step of bounded size and no more; prompts get the rows that are left. A
quarter of these is kept for prompts that need less than the first one still does, so a short prompt does not
wait for the end of a long one.

Each task says which rows come next (`Task.next_rows`). Those of a pass over masks have to be in one step. A
task may need another program than the forward pass for its rows (`RowProgram`): a step has at most one such
call, whose rows come out of the same budget.

While several clients have tasks, they take turns (engine/turns.py): the budget is one of time then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from glassloop.engine.call_plan import PageCopy
from glassloop.engine.kv_nodes import NoRoom
from glassloop.engine.queues import StepRows, TaskQueues
from glassloop.engine.tasks.task import PlannedCall, Task, Work
from glassloop.engine.tree import KVTree
from glassloop.ops.protocol import Ops

_LONGEST_STEP = 0.25  # seconds that a step with prompts may take on a server
_SHORT_STEP = 0.05  # seconds that it may take while several clients have work


class Scheduler(TaskQueues):
    def __init__(self, tree: KVTree, ops: Ops, most_running: int) -> None:
        super().__init__(tree, most_running)
        self._ops = ops  # whose limits of rows hold

    def plan(self) -> list[PlannedCall]:
        """Plans the rows of the next step. The result is empty if no task has anything to compute, or none
        has room for it."""
        step = StepRows()
        self._add_all(step)
        self.turns.rows = step.rows
        return _calls(step.works, self._tree.take_copies(), bool(self._special)) if step.works else []

    @property
    def plans_ahead(self) -> bool:
        """Whether a step can be planned while another one is under way: no task needs a program or has
        passes."""
        return not self._special

    def plan_ahead(self, tasks: Sequence[Task], under_way: set[Task]) -> PlannedCall | None:
        """Plans step N+1 while step N runs. Each of `tasks` gets one row whose token is a placeholder for
        what step N will choose. Other tasks in `under_way` get none; the rest are planned as in `plan`. The
        result is None if there is no room without preempting a task."""
        step = StepRows(under_way)
        self._may_preempt = False
        try:
            for task in tasks:
                path = task.branches[0].path
                assert path is not None
                first = path.length
                step.works.append(Work(task, path, first, [self._tree.promise(path)], 1, None))
            step.rows = len(step.works)
            self._add_all(step)
            self.turns.rows = step.rows
        except NoRoom:
            for work in step.works:
                self._tree.cut(work.path, work.first)
            return None
        finally:
            self._may_preempt = True
        return PlannedCall(None, step.works, self._tree.take_copies()) if step.works else None

    def _add_all(self, step: StepRows) -> None:
        """Adds the rows of the tasks that are not planned already, and have something to compute."""
        if len(self._by_owner) > 1:
            in_turn = StepRows(step.planned, step.works)
            self._add_in_turn(in_turn)
            if step.works:
                step.rows = in_turn.rows
                return
            # With little memory it may be that nobody has room in turn. Then the oldest task goes first.
        planned, step_rows = step.planned, self._ops.step_rows
        ready = [task for task in self.running if task not in planned] if planned else self.running
        ready = [task for task in ready if task.waits_for_a_token()]
        spare = step_rows - step.rows - sum([len(task.branches) for task in ready])
        preemptions = self._preemptions
        kept = self._pass_rows(spare) if self._special else 0
        for task in ready:
            # An older task may have taken its pages meanwhile. Searching for each in the list takes a
            # millisecond with 256 of them.
            if self._preemptions == preemptions or task in self.running:
                guess = task.guess(spare - kept)
                if self._add_rows(task, guess, step_rows, step):
                    spare -= len(guess)
        if self._special:
            for task in sorted(self._special, key=lambda each: each.order):
                spare -= self._add_pass(task, spare, step)
        if len(planned) < len(self.running) or self.waiting:
            room = min(spare, self._ops.rows_beside) if step.works else self._prompt_rows
            if room > 0:
                self._add_prompts(room, step)

    @property
    def _prompt_rows(self) -> int:
        """The number of rows of a step that has prompts only. A client that comes waits for its end, so on a
        server it is bounded in time; Python and the terminal have no other clients."""
        if not self._by_owner or "" in self._by_owner:
            return self._ops.step_rows
        return self.turns.rows_in(_SHORT_STEP if self.turns.is_shared else _LONGEST_STEP, self._ops.step_rows)

    # ── passes over masks ──────────────────────────────────────────────────────────────────────────────────

    def _pass_rows(self, spare: int) -> int:
        """Returns how many of the spare rows are kept for passes: drafts must not take them."""
        return min(sum([task.pass_rows for task in self._special if task in self.running]), spare)

    def _add_pass(self, task: Task, room: int, step: StepRows) -> int:
        """Adds the next pass of a task, if it has one and there is room; a pass that is larger has a step
        with no other. Returns how many rows it took."""
        # What is planned for this step is not computed yet, so no page of it can be copied.
        if task in step.planned or task not in self.running or not task.pass_rows:
            return 0
        rows = step.rows
        if not step.works:
            room = max(self._ops.step_rows, task.pass_rows)
        self._add_rows(task, [], room, step)
        return step.rows - rows

    # ── prompts ────────────────────────────────────────────────────────────────────────────────────────────

    def _add_prompts(self, room: int, step: StepRows) -> None:
        """Adds about `room` rows of tasks that have more than a token to compute, and admits waiting
        tasks."""
        most = step.rows + room  # rows that the step may have with them
        short = self._shorter_than_the_first(step.planned)
        kept = min(room // 4, sum([task.pending for task in short]))
        for task in list(self.running):
            if most - step.rows <= kept:
                break
            if task not in step.planned and task in self.running:
                self._add_prompt(task, most - step.rows - kept, step)
        while self.waiting and most - step.rows > kept:
            task = self.waiting[0]
            if not self._enter(task, step) or not self._add_prompt(task, most - step.rows - kept, step):
                break
        for task in short:
            if step.rows >= most:
                break
            if self._is_ready(task, step):
                self._add_prompt(task, most - step.rows, step)

    def _shorter_than_the_first(self, planned: set[Task]) -> list[Task]:
        """Returns the tasks of the same priority that need fewer rows than the first prompt under way still
        does, the shortest first."""
        prompts = [task for task in self.running if task not in planned]
        if not prompts:
            return []
        first, others = prompts[0], prompts[1:]
        if len(self.running) < self.most_running:
            others += self.waiting
        most = first.pending
        short = [task for task in others if task.order[0] == first.order[0] and task.pending < most]
        return sorted(short, key=lambda task: task.pending)

    def _add_prompt(self, task: Task, room: int, step: StepRows) -> bool:
        """Adds rows of a task that may need a program. It has to wait if the step has another one already.

        Returns False if the task was preempted.
        """
        program = task.next_program
        if program is not None:
            other = next((work.program for work in step.works if work.program is not None), None)
            if other is not None and not (program.together and program == other):
                return True
        return self._add_rows(task, [], room, step)

    # ── turns of several owners ────────────────────────────────────────────────────────────────────────────

    def _add_in_turn(self, step: StepRows) -> None:
        """Adds rows as `_add_all` does, for several owners: first the row of one run of each, then as many
        others as the time allows, owner by owner."""
        turns, step_rows = self.turns, self._ops.step_rows
        most = min(step_rows, len(self._by_owner) + turns.begin(self._by_owner))
        rows = Counter(work.task.request.owner for work in step.works)  # of a step that is planned ahead
        firsts = set(rows)
        self._add_firsts(step, rows, firsts)
        has_whole = False
        # The second time nobody has saved anything: the one with the least debt goes on.
        for on_account in (False, True):
            for owner in turns.owners:
                if turns.owes(owner):
                    continue
                for task in turns.in_order(self._by_owner[owner]):
                    left = min(turns.room(owner) + (owner in firsts) - rows[owner], most - rows.total())
                    if left <= 0 and (step.works or not on_account):
                        break
                    is_whole = len(task.branches) > 1 or task.pass_rows > 0
                    if is_whole and not on_account and not turns.can_overdraw:
                        continue
                    if self._is_ready(task, step):
                        before = step.rows
                        self._add_turn(task, left, step)
                        rows[owner] += step.rows - before
                        has_whole = has_whole or (is_whole and step.rows > before)
            if step.works:
                break
        turns.planned(rows, firsts, has_whole, step.works)

    def _add_firsts(self, step: StepRows, rows: Counter[str], firsts: set[str]) -> None:
        """Adds the row of one run of each owner that waits for its next token, with its draft. Counts the
        rows of each owner in `rows` and adds those that have one to `firsts`."""
        turns, step_rows = self.turns, self._ops.step_rows
        for task in turns.in_order(self.running):
            owner = task.request.owner
            if owner in firsts or task in step.planned or len(task.branches) > 1:
                continue
            if not task.waits_for_a_token() or turns.owes(owner):
                continue
            guess = task.guess(min(turns.room(owner), step_rows - rows.total() - 1))
            if task in self.running and self._add_rows(task, guess, step_rows, step):
                rows[owner] += 1 + len(guess)
                firsts.add(owner)

    def _add_turn(self, task: Task, room: int, step: StepRows) -> None:
        """Adds rows of a task: that of its next token, its next pass, or as much of its prompt as fits. Rows
        that must be computed together are added whole."""
        rows = self._ops.step_rows - step.rows
        if task.pass_rows:
            self._add_pass(task, rows, step)
        elif task.waits_for_a_token():
            if len(task.branches) <= rows or not step.works:
                self._add_rows(task, [], rows, step)
        else:
            # Where all owners have prompts only, the step is not bounded by what was saved.
            most = self._ops.rows_beside if step.works else self._prompt_rows
            self._add_prompt(task, min(room, most) if step.works else most, step)


def _calls(works: list[Work], copies: Sequence[PageCopy], is_special: bool) -> list[PlannedCall]:
    """Groups works by what computes them: at most one program, and the forward pass. The first call makes
    the copies of pages."""
    if not is_special:
        return [PlannedCall(None, works, copies)]
    has_views = any(work.view is not None for work in works)
    special = [work for work in works if work.program is not None]
    if not special:
        return [PlannedCall(None, works, copies, has_views)]
    calls = [PlannedCall(special[0].program, special, copies)]
    plain = [work for work in works if work.program is None]
    return [*calls, PlannedCall(None, plain, (), has_views)] if plain else calls
