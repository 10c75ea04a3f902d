"""Turns: how the time of steps is divided while several clients have work.

Each owner of requests has one row in every step, of a run that waits for its next token. All other rows (more
samples, beams, drafts, prompts, masks, readings) share an allowance of time, which grows with every step by
half of what one row for each owner takes: so on average a step takes less than twice as long as if
every owner had one plain run. Rows that have to be computed together may exceed it once and are paid for by
the steps after. The owner that has had the least of that time goes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from glassloop.engine.drafts import StepCost, tracked
from glassloop.engine.task import Task, Work

_MANY = 64  # rows from which on a step is long enough to tell what a row of a prompt takes
_BEYOND = 0.5  # of the time of one row for each owner: what all other rows may take
_ROW_SHARE = 0.2  # of the time of a step with one row: the cost of another row, before one was measured


class Turns:
    def __init__(self) -> None:
        self._cost = StepCost()  # of whole steps with at most one row for each owner
        self._row = 0.0  # seconds that each further row takes; 0: not measured yet
        self._saved = 0.0  # seconds that rows beyond one for each owner may take; below 0: a debt
        self._used: dict[str, float] = {}  # seconds that each owner has had of these
        self._served: dict[Task, int] = {}  # the number of the step in which a task last had a row
        self._steps = 0
        self._owners = 0  # with work, in the step that is planned; 0: it has no turns
        self._firsts = 0  # rows of this step that owners have anyway
        self._given: dict[str, int] = {}  # rows of this step beyond these, by owner
        self.rows = 0  # all rows of the step that was planned last
        self._prompt_row = 0.0  # seconds that a row takes in a step of many; 0: not measured yet

    def begin(self, owners: Iterable[str]) -> int:
        """Begins to plan a step for these owners. Returns how many rows it may have beyond one for each."""
        known = {owner: self._used.get(owner) for owner in owners}
        # An owner that comes, or comes again, has no claim to the time before.
        least = min((used for used in known.values() if used is not None), default=0.0)
        self._used = {owner: least if used is None else used for owner, used in known.items()}
        self._owners, self._firsts, self._given = len(known), 0, {}
        self._steps += 1
        if not self._cost.measured or self._saved <= 0:
            return 0
        return 1 + int(self._saved / (self._row or _ROW_SHARE * self._cost.cost(1)))

    def in_order(self, tasks: Iterable[Task]) -> list[Task]:
        """Returns tasks in the order in which they have their turns: by priority, by how long they have
        waited for a row, and by arrival."""
        served = self._served
        return sorted(tasks, key=lambda task: (task.order[0], served.get(task, 0), task.order[1]))

    @property
    def owners(self) -> list[str]:
        """The owners of the step that is planned, in the order of their turns."""
        return sorted(self._used, key=self._used.__getitem__)

    def planned(self, works: Sequence[Work], firsts: int) -> None:
        """Notes the rows of the step. `firsts` of them are those that owners have anyway."""
        self._firsts = firsts
        seen: set[str] = set()
        for work in works:
            self._served[work.task] = self._steps
            owner, rows = work.task.request.owner, len(work.ids)
            if len(seen) < firsts and owner not in seen:  # they come first
                seen.add(owner)
                rows -= 1
            if rows:
                self._given[owner] = self._given.get(owner, 0) + rows

    def forget(self, task: Task) -> None:
        self._served.pop(task, None)

    def rows_in(self, seconds: float, most: int) -> int:
        """Returns how many rows a step of about this time may have, at most `most`."""
        return min(most, max(_MANY, int(seconds / self._prompt_row))) if self._prompt_row else most

    def spent(self, seconds: float) -> None:
        """Notes how long the step took that was planned last."""
        if self.rows >= _MANY:
            self._prompt_row = tracked(self._prompt_row, seconds / self.rows)
        if not self._owners:
            return
        rows, cost = sum(self._given.values()), self._cost
        if not rows and self._firsts:
            cost.saw(min(self._firsts, 64), seconds)
        plain = cost.cost(min(self._firsts, 64)) if cost.measured and self._firsts else 0.0
        beyond = max(0.0, seconds - plain) if rows else 0.0
        for owner, given in self._given.items():
            self._used[owner] = self._used.get(owner, 0.0) + beyond * given / rows
        if cost.measured:
            self._row = tracked(self._row, beyond / rows) if rows else self._row
            allowed = _BEYOND * cost.cost(min(self._owners, 64))
            self._saved = min(allowed, self._saved + allowed - beyond)
        self._owners = 0
