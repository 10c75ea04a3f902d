"""The budget of a search: how many tokens, seconds and branches all of its paths may take together."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from glassloop.engine.deadline import Deadline
from glassloop.errors import GlassloopError
from glassloop.util.check import ValueRule, or_none, require, whole_between
from glassloop.util.shown import shown

_COUNT = or_none(ValueRule("a whole number from 1 up", whole_between(1, 1 << 53).fits))
_LAST_DECISIONS = 0.02  # the share of a budget of seconds, and
_MOST_LAST_DECISIONS = 0.05  # the most seconds, that the method keeps for its answer
_EXTRACTING = 2.0  # seconds after the budget in which answers are still read


@dataclass(frozen=True)
class Budget:
    """Limits of one search, which are never exceeded; None is no limit.

    `tokens` counts the tokens of all paths, those that were forced included; what a fork shares with its
    parent is counted once. `branches` counts paths, forks included. `seconds` counts from the start of the
    search. A search under a limit of seconds depends on the machine; its record has where it was cut.
    """

    tokens: int | None = None
    seconds: float | None = None
    branches: int | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "branches"):
            require(f"budget.{name}", getattr(self, name), _COUNT)
        seconds = self.seconds
        if seconds is not None and (type(seconds) not in (int, float) or not 0 < seconds <= 1e9):
            raise GlassloopError.about("budget.seconds", f"is {shown(seconds)}; seconds above 0 are expected")

    @classmethod
    def of(cls, budget: Budget | dict[str, Any] | None) -> Budget:
        """Returns a budget: the given one, one made of its fields, or one without limits."""
        if budget is None:
            return cls()
        if isinstance(budget, Budget):
            return budget
        names = cls.__dataclass_fields__
        if not isinstance(budget, dict):
            raise GlassloopError.about("budget", f"is {shown(budget)}; a Budget is expected")
        for name in budget:
            if name not in names:
                raise GlassloopError.about("budget", f"has {shown(name)}; {', '.join(names)} are expected")
        return cls(**budget)

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


class SearchClock:
    """The time of one search, and how much of it the budget leaves."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._began: float | None = None

    @property
    def running(self) -> bool:
        return self._began is not None

    def start(self) -> None:
        self._began = perf_counter()

    @property
    def seconds(self) -> float:
        """The time since the search began."""
        return 0.0 if self._began is None else perf_counter() - self._began

    @property
    def left(self) -> float | None:
        """The seconds that paths and verifiers may still take; None: no limit."""
        if self._limit is None:
            return None
        return self._limit - min(_LAST_DECISIONS * self._limit, _MOST_LAST_DECISIONS) - self.seconds

    @property
    def extracting_until(self) -> Deadline | None:
        """When extractors must have ended: paths that time has cut off have an answer, too."""
        if self._limit is None:
            return None
        return Deadline(max(0.0, self._limit + _EXTRACTING - self.seconds), "extract")
