"""Checks of the arguments of public functions: each returns the value in its normal form, or raises an error
that names the argument, its value and what is expected."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import isfinite
from numbers import Integral
from pathlib import Path

from glassloop.errors import GlassloopError, TextError
from glassloop.util.shown import shown


def check_count(
    name: str,
    value: object,
    low: int,
    high: int,
    what: str = "a whole number",
    error: type[GlassloopError] = GlassloopError,
    note: str = "",
) -> int:
    """Returns a whole number from `low` to `high`; `what` says in the message what is counted, and `note` why
    it has these bounds."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not low <= value <= high:  # type: ignore[operator]
        bounds = f"from {low} to {high} is expected" if low <= high else "is expected, but there is none"
        raise error.about(name, f"is {shown(value)}; {what} {bounds}{note}")
    return int(value)  # type: ignore[call-overload, no-any-return]


def check_number(name: str, value: object, low: float, high: float) -> float:
    """Returns a number from `low` to `high`."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
    if not good or not isfinite(value):  # type: ignore[arg-type]
        raise GlassloopError.about(name, f"is {shown(value)}; a number from {low:g} to {high:g} is expected")
    return float(value)  # type: ignore[arg-type]


def check_text(name: str, value: object) -> str:
    """Returns a text that can be written as UTF-8."""
    if not isinstance(value, str):
        raise TextError.about(name, f"is {type(value).__name__}; a text is expected")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        found = f"has a lone surrogate ({shown(value[error.start])}) at character {error.start}"
        raise TextError.about(name, f"{found}; a text without them is expected") from None
    return value


def check_one_of(
    name: str, value: object, known: Sequence[str], error: type[GlassloopError] = GlassloopError
) -> None:
    """Raises unless a value is one of the known names."""
    if not isinstance(value, str) or value not in known:
        expected = " or ".join(map(repr, known))
        raise error.about(name, f"is {shown(value)}; {expected} is expected")


def check_path(name: str, value: object) -> Path:
    """Returns the path of a file or folder."""
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    try:
        if isinstance(path, str) and path and os.fsencode(path):
            return Path(path)
    except UnicodeEncodeError:  # no name of a file has such characters
        pass
    raise GlassloopError.about(name, f"is {shown(value)}; a path is expected")


def check_function(name: str, value: object) -> None:
    """Raises unless a value is a function or None."""
    if value is not None and not callable(value):
        raise GlassloopError.about(name, f"is {shown(value)}; a function is expected")
