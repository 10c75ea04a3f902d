"""Turns: how the time of steps is divided while several clients have work.

Each owner of requests has one row in every step, of a run that waits for its next token. All other rows (more
samples, beams, drafts, prompts, masks, readings) cost time, for which each owner has an account. With every
step the accounts together get half of what one row for each owner takes: so on average a step takes at most
half as long again as if every owner had one plain run. The accounts get equal parts, and one that is full
passes its part on. Rows that have to be computed together (beams, masks) may overdraw an account; its owner
then waits until it has earned that time, and all others with such rows until the allowance of the steps since
has paid for it, but nobody else waits. The owner that has saved the most goes first.

Stages of users are Python code that all wait for, and nobody knows before how long it takes. An owner whose
stages took longer than half of the rest of a step has no rows until the others have had so much time, too.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from time import monotonic

from glassloop.engine.step_cost import StepCost, tracked
from glassloop.engine.tasks.task import Task, Work

_MANY = 64  # rows from which on a step is long enough to measure what a row of a prompt takes
_LATELY = 1.0  # seconds for which an owner that had work is expected to come again
_BEYOND = 0.5  # of the time of one row for each owner: what all other rows may take on average
_FULL = 4  # times that allowance: what an account may hold, and what all other rows of a step may take
_ROW_SHARE = 0.2  # of the time of a step with one row: the cost of another row, before one was measured
_LEAST_SHARE = 1 / 256  # of that time: the least cost of another row, whatever was measured
# Times the expected duration: what is beyond it is not charged, as the process had lost its core.
_LOST_CORE = 4
STAGE_BUDGET = 0.05  # seconds that a stage of users may take in a step for one owner; else it is logged
_LOGGED_EVERY = 60.0  # seconds after which the same stage is logged again
_SLOW = "stage %r took %.0f ms in a step; its budget is %.0f ms: its client waits for the others"
_LOG = logging.getLogger(__name__)
_LEAST_COST = 1e-6  # seconds; what stages of users took is taken off, which may leave nothing
_MOST_ACCOUNTS = 1024  # of owners that have no work at the moment, too


class Turns:
    def __init__(self) -> None:
        self._cost = StepCost()  # of whole steps with at most one row for each owner
        self._row = 0.0  # seconds that each further row takes; 0: not measured yet
        self._accounts: dict[str, float] = {}  # seconds that rows of an owner may take; below 0: a debt
        self._overdrawn = 0.0  # seconds of rows that had to be in one step, as far as not paid for
        self._served: dict[Task, int] = {}  # the number of the step in which a task last had a row
        self._steps = 0
        self._owners: list[str] = []  # with work, in the step that is planned; empty: it has no turns
        self._whole = False  # whether this step has rows that had to be in it together
        self._firsts: Collection[str] = ()  # owners that have a row for a next token in this step
        self._rows: dict[str, int] = {}  # of this step beyond these, by owner
        self._shared = -_LATELY  # when a step with several owners was planned last
        self.rows = 0  # all rows of the step that was planned last
        self._prompt_row = 0.0  # seconds that a row takes in a step of many; 0: not measured yet
        self._staged: dict[str, float] = {}  # seconds of this step that stages of users took, by owner
        self._debts: dict[str, float] = {}  # seconds that owners have to wait for the stages of theirs
        self._logged: dict[str, float] = {}  # when a stage was last logged as slow

    def begin(self, owners: Iterable[str]) -> int:
        """Begins to plan a step for these owners. Returns how many rows it may have beyond one for each."""
        self._owners, self._rows, self._shared = list(owners), {}, monotonic()
        self._steps += 1
        if not self._cost.measured:
            return 0
        if len(self._accounts) > _MOST_ACCOUNTS:
            self._accounts = {owner: self._saved(owner) for owner in self._owners}
        return int(self._full / self._row_cost)

    def _plain(self, owners: int) -> float:
        """Returns the seconds of a step with one row for each of so many owners."""
        return self._cost.cost(min(owners, 64)) if owners else 0.0

    @property
    def _allowance(self) -> float:
        """The seconds that rows beyond one for each owner may take in a step, on average."""
        return _BEYOND * self._plain(len(self._owners))

    @property
    def _full(self) -> float:
        """The seconds that an account holds at most."""
        return _FULL * self._allowance

    def _saved(self, owner: str) -> float:
        """Returns the seconds in an account. A new one is full, for a first short prompt."""
        saved = self._accounts.get(owner)
        return (self._full if self._cost.measured else 0.0) if saved is None else saved

    @property
    def _row_cost(self) -> float:
        alone = max(self._cost.cost(1), _LEAST_COST)
        return max(self._row, _LEAST_SHARE * alone) if self._row else _ROW_SHARE * alone

    @property
    def is_shared(self) -> bool:
        """Whether several owners have work, or had some a moment ago."""
        return monotonic() - self._shared < _LATELY

    @property
    def can_overdraw(self) -> bool:
        """Whether rows may be computed that have to be in one step, however long they take: those before are
        paid for."""
        return self._overdrawn <= 0

    def room(self, owner: str) -> int:
        """Returns how many rows an owner may have in this step, beyond the one for its next token."""
        saved = self._saved(owner)
        return 1 + int(saved / self._row_cost) if saved > 0 else 0

    def in_order(self, tasks: Iterable[Task]) -> list[Task]:
        """Returns tasks in the order in which they have their turns: by priority, by how long they have
        waited for a row, and by arrival."""
        served = self._served
        return sorted(tasks, key=lambda task: (task.order[0], served.get(task, 0), task.order[1]))

    @property
    def owners(self) -> list[str]:
        """The owners of the step that is planned, in the order of their turns."""
        return sorted(self._owners, key=self._saved, reverse=True)

    def planned(
        self, rows: Mapping[str, int], firsts: Collection[str], whole: bool, works: Sequence[Work]
    ) -> None:
        """Notes the rows of the step, by owner. The owners `firsts` have one of them anyway; `whole` if some
        had to be in one step."""
        self._firsts, self._whole = firsts, whole
        self._rows = {owner: more for owner in rows if (more := rows[owner] - (owner in firsts))}
        for work in works:
            self._served[work.task] = self._steps

    def forget(self, task: Task) -> None:
        self._served.pop(task, None)

    def rows_in(self, seconds: float, most: int) -> int:
        """Returns how many rows a step of about this time may have, at most `most`."""
        return min(most, max(_MANY, int(seconds / self._prompt_row))) if self._prompt_row else most

    def charge(self, owner: str, stages: Mapping[str, float]) -> None:
        """Notes for how many seconds of the step stages of users worked for an owner, by stage."""
        self._staged[owner] = self._staged.get(owner, 0.0) + sum(stages.values())
        now = monotonic()
        for name, seconds in stages.items():
            if seconds > STAGE_BUDGET and now - self._logged.get(name, -_LOGGED_EVERY) >= _LOGGED_EVERY:
                self._logged[name] = now
                _LOG.warning(_SLOW, name, 1000 * seconds, 1000 * STAGE_BUDGET)

    def owes(self, owner: str) -> bool:
        """Returns whether an owner has to wait because its stages have taken the time of others."""
        return owner in self._debts

    def _settle(self, seconds: float) -> float:
        """Adds what stages took to the debts of their owners, of which each step pays half of its other time.
        Returns that time."""
        if not self._staged and not self._debts:
            return seconds
        rest = max(0.0, seconds - sum(self._staged.values()))
        owed = dict(self._debts)
        for owner, staged in self._staged.items() if self._owners else ():
            owed[owner] = max(owed.get(owner, 0.0), staged)
        paid = _BEYOND * rest / max(1, len(owed))
        self._debts = {owner: debt - paid for owner, debt in owed.items() if debt > paid}
        self._staged = {}
        return rest

    def spent(self, seconds: float) -> None:
        """Notes how long the step took that was planned last."""
        seconds = self._settle(seconds)
        if self.rows >= _MANY:
            # The rows of a long prompt take longer from step to step.
            self._prompt_row = (seconds / self.rows + (self._prompt_row or seconds / self.rows)) / 2
        if not self._owners:
            return
        self._charge(seconds)
        if self._cost.measured:
            self._pay()
        self._owners = []

    def _charge(self, seconds: float) -> None:
        """Takes the time of a step, less that of one row for each owner, from the accounts of those that had
        more rows."""
        cost, firsts, rows = self._cost, len(self._firsts), sum(self._rows.values())
        if not rows:
            if firsts:
                cost.saw(min(firsts, 64), seconds)
            return
        took = seconds
        if cost.measured:
            plain, alone = self._plain(firsts), cost.cost(1)
            took = max(0.0, seconds - plain)
            self._row = tracked(self._row, max(took / rows, _LEAST_SHARE * alone))
            took = min(took, _LOST_CORE * (plain + rows * max(self._row, _ROW_SHARE * alone)))
        self._overdrawn += took * self._whole
        for owner, more in self._rows.items():
            self._accounts[owner] = self._saved(owner) - took * more / rows

    def _pay(self) -> None:
        """Divides the allowance of a step among the accounts that are not full, and the time of the rows for
        next tokens that some owners did not have among these."""
        full, owners, firsts = self._full, self._owners, self._firsts
        self._overdrawn = max(0.0, self._overdrawn - self._allowance)
        earning = [owner for owner in owners if self._saved(owner) < full]
        without = [owner for owner in earning if owner not in firsts]
        unused = max(0.0, self._plain(len(owners)) - self._plain(len(firsts)))
        for owner in earning:
            share = self._allowance / len(earning) + (unused / len(without) if owner in without else 0.0)
            self._accounts[owner] = min(full, self._saved(owner) + share)
