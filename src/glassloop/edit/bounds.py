"""The checks of an edit's arguments: each error names the argument and says what was expected."""

from __future__ import annotations

from math import isfinite

from glassloop.errors import GlassloopError
from glassloop.shown import shown


def check_count(name: str, value: object, low: int, high: int) -> int:
    """Returns a whole number from `low` to `high`; raises if it is not one."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        problem = f"is {shown(value)}; a whole number from {low} to {high} is expected"
        raise GlassloopError.about(name, problem)
    return value


def check_number(name: str, value: object, low: float, high: float) -> float:
    """Returns a number from `low` to `high`; raises if it is not one."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
    if not good or not low <= value <= high:  # type: ignore[operator]
        problem = f"is {shown(value)}; a number from {low:g} to {high:g} is expected"
        raise GlassloopError.about(name, problem)
    return float(value)  # type: ignore[arg-type]


def check_text(name: str, value: object) -> str:
    """Returns a text; raises if it is not one."""
    if not isinstance(value, str):
        raise GlassloopError.about(name, f"is {type(value).__name__}; a text is expected")
    return value
