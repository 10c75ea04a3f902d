"""The budget of a search: how many tokens, seconds and branches all of its paths may take together."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from glassloop.errors import GlassloopError
from glassloop.util.shown import shown

_MOST = 1 << 53


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
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 1 <= value <= _MOST):
                problem = f"is {shown(value)}; a whole number from 1 up is expected"
                raise GlassloopError.about(f"budget.{name}", problem)
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
        known = cls.__dataclass_fields__
        if not isinstance(budget, dict):
            raise GlassloopError.about("budget", f"is {shown(budget)}; a Budget is expected")
        for name in budget:
            if name not in known:
                raise GlassloopError.about("budget", f"has {shown(name)}; {', '.join(known)} are expected")
        return cls(**budget)

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}
