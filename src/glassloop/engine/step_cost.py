"""The cost of a step by its number of rows, as it is measured while the engine runs.

Drafts (engine/drafting/) and the turns of clients (engine/turns.py) are planned with it.
"""

from __future__ import annotations

from bisect import bisect_left, insort

_GUESS_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24)  # of a guess
LONGEST_GUESS = _GUESS_LENGTHS[-1]


class StepCost:
    """The cost of a step by its number of rows: a moving average of what was measured, or an estimate."""

    def __init__(self) -> None:
        self.rows = 1  # of the next step, without guesses
        self._measured: dict[int, float] = {}
        self._sizes: list[int] = []  # the numbers of rows that were measured, in order
        self._costs: dict[int, float] = {}  # results of `cost` since the last measurement

    @property
    def measured(self) -> bool:
        """Whether costs are in seconds: a step was measured. Before, they are relative to that of one row."""
        return bool(self._measured)

    def saw(self, rows: int, seconds: float) -> None:
        if rows > 64:
            return
        if rows not in self._measured:
            insort(self._sizes, rows)
        self._measured[rows] = tracked(self._measured.get(rows, 0.0), seconds)
        self._costs.clear()

    def cost(self, rows: int) -> float:
        cost = self._costs.get(rows)
        if cost is None:
            cost = self._costs[rows] = self._between(rows)
        return cost

    def _between(self, rows: int) -> float:
        measured, sizes = self._measured, self._sizes
        at = bisect_left(sizes, rows)
        if not sizes:
            return _estimate(rows)
        if at in (0, len(sizes)):
            near = sizes[min(at, len(sizes) - 1)]
            return measured[near] * _estimate(rows) / _estimate(near)
        below, above = sizes[at - 1], sizes[at]
        return measured[below] + (rows - below) / (above - below) * (measured[above] - measured[below])

    def worth(self, chance: float, most: int, each: float = 0.0) -> int:
        """Returns how many guesses give the most tokens per second, if each is right with this chance after
        those before it were, and making one takes `each` seconds."""
        return self.best(chance, most, each)[1]

    def row_costs(self, most: int) -> list[float]:
        """Returns the cost of each of `most` rows that are added to the next step. Costs do not fall from one
        row to the next: where rows after it are cheaper, as a kernel may compute four as fast as three, a row
        has the mean cost of its group."""
        costs = [self.cost(self.rows + number) for number in range(most + 1)]
        added: list[float] = []
        while len(added) < most:
            at = len(added)
            slope, end = min(((costs[to] - costs[at]) / (to - at), -to) for to in range(at + 1, most + 1))
            added += [slope] * (-end - at)
        return added

    def best(self, chance: float, most: int, each: float = 0.0) -> tuple[float, int]:
        """Returns the most tokens per second that guesses can give, and how many guesses do so (`worth`)."""
        best, length = self.rows / self.cost(self.rows), 0
        for count in _GUESS_LENGTHS:
            if count > most:
                break
            right = chance * (1 - chance**count) / (1 - chance)
            rate = (self.rows + right) / (self.cost(self.rows + count) + count * each)
            if rate > best:
                best, length = rate, count
        return best, length


def tracked(estimate: float, seconds: float) -> float:
    """Returns an estimate of a duration (0: there is none yet) after one more measurement. It follows short
    ones quickly and long ones slowly: a process that loses its core for a while must not seem to be slow."""
    if not estimate:
        return seconds
    longer = seconds - estimate
    return estimate + (0.5 * longer if longer < 0 else min(0.1 * longer, 0.05 * estimate))


def _estimate(rows: int) -> float:
    """Returns the cost of a step, relative to that of one row: the weights are read once for all rows, and
    each row adds its arithmetic."""
    return 1.0 + 0.2 * (rows - 1)
