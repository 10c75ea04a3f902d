"""Checks of what comes from outside. An error names the value, what it is and what is expected: "NAME is X; Y
is expected".

- `check_count` and its like check the arguments of public functions and return them in their normal form.
- A `ValueRule` says what a value has to be, in words and as a test; `require` raises where it is not.
- `FileChecks` checks nested data of a file, and names the place: `beams[3][0]`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from glassloop.errors import GlassloopError, TextError
from glassloop.util.shown import printable, shown

# ── arguments ──────────────────────────────────────────────────────────────────────────────────────────────


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
    if not is_whole(value) or not low <= value <= high:
        bounds = f"from {low} to {high} is expected" if low <= high else "is expected, but there is none"
        raise error.about(name, f"is {shown(value)}; {what} {bounds}{note}")
    return int(value)


def check_number(
    name: str, value: object, low: float, high: float, error: type[GlassloopError] = GlassloopError
) -> float:
    """Returns a number from `low` to `high`."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
    if not good or not isfinite(value):  # type: ignore[arg-type]
        raise error.about(name, f"is {shown(value)}; a number from {low:g} to {high:g} is expected")
    return float(value)  # type: ignore[arg-type]


def check_text(name: str, value: object) -> str:
    """Returns a text that can be written as UTF-8."""
    if not isinstance(value, str):
        raise TextError.about(name, f"is {type(value).__name__}; a text is expected")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        problem = f"has a lone surrogate ({shown(value[error.start])}) at character {error.start}"
        raise TextError.about(name, f"{problem}; a text without them is expected") from None
    return value


def check_one_of(
    name: str, value: object, allowed: Sequence[str], error: type[GlassloopError] = GlassloopError
) -> None:
    """Raises unless a value is one of the allowed names."""
    if not isinstance(value, str) or value not in allowed:
        expected = " or ".join(map(repr, allowed))
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


def is_number(value: object) -> TypeGuard[float]:
    """Returns whether a value is a finite number. A Boolean is none."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def is_whole(value: object) -> TypeGuard[int]:
    """Returns whether a value is a whole number, of Python or of NumPy. A Boolean is none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


# ── rules ──────────────────────────────────────────────────────────────────────────────────────────────────


class ValueRule(NamedTuple):
    """What a value has to be: in words, for the error, and as a test."""

    expected: str
    fits: Callable[[Any], bool]


def require(name: str, value: object, rule: ValueRule, error: type[GlassloopError] = GlassloopError) -> None:
    """Raises unless a value fits a rule."""
    if not rule.fits(value):
        raise error.about(name, f"is {shown(value)}; {rule.expected} is expected")


def whole_between(low: int, high: int) -> ValueRule:
    def fits(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    return ValueRule(f"a whole number from {low} to {high}", fits)


def number_between(low: float, high: float) -> ValueRule:
    def fits(value: Any) -> bool:  # NaN does not
        return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high

    return ValueRule(f"a number from {low:g} to {high:g}", fits)


def text_matching(pattern: re.Pattern[str], expected: str) -> ValueRule:
    return ValueRule(expected, lambda it: isinstance(it, str) and pattern.fullmatch(it) is not None)


def one_of(*allowed: object) -> ValueRule:
    def fits(value: Any) -> bool:
        return any(type(value) is type(each) and value == each for each in allowed)

    return ValueRule(f"one of {', '.join('null' if each is None else str(each) for each in allowed)}", fits)


def or_none(rule: ValueRule, words: str = "") -> ValueRule:
    """Returns a rule that None fits too; `words` are added to those of the rule."""
    return ValueRule(rule.expected + words, lambda it: it is None or rule.fits(it))


TEXT = ValueRule("a text", lambda it: isinstance(it, str))
FLAG = ValueRule("true or false", lambda it: isinstance(it, bool))
LIST = ValueRule("a list", lambda it: isinstance(it, list))
OBJECT = ValueRule("an object", lambda it: isinstance(it, dict))


def has_fields(value: object, rules: Mapping[str, ValueRule]) -> bool:
    """Returns whether a value is an object with exactly these fields, each of which fits its rule."""
    if not isinstance(value, dict) or value.keys() != rules.keys():
        return False
    return all(rule.fits(value[name]) for name, rule in rules.items())


# ── nested data ────────────────────────────────────────────────────────────────────────────────────────────

Check = Callable[[str, Any], None]  # (the name of the place, its value): raises if the value is wrong


class FileChecks:
    """Makes checks of the data in a file, which may be nested. Their errors are of one class."""

    def __init__(self, error: type[GlassloopError]) -> None:
        self._error = error

    def of(self, rule: ValueRule) -> Check:
        """Returns a check that a value fits a rule."""
        expected, fits = rule

        def check(name: str, value: Any) -> None:
            if not fits(value):
                raise self._error(f"{name} is {shown(value)}; {expected} is expected")

        return check

    def must_be(self, expected: str, fits: Callable[[Any], bool]) -> Check:
        return self.of(ValueRule(expected, fits))

    def optional(self, check: Check) -> Check:
        return lambda name, value: None if value is None else check(name, value)

    def list_of(self, item: Check, least: int = 0, most: int = 1 << 31, unique: bool = False) -> Check:
        is_list = self.of(LIST)

        def check(name: str, value: Any) -> None:
            is_list(name, value)
            if not least <= len(value) <= most:
                raise self._error(f"{name} has {len(value)} entries; {least} to {most} are expected")
            for place, entry in enumerate(value):
                item(f"{name}[{place}]", entry)
            if unique and len(set(value)) != len(value):
                raise self._error(f"{name} has the same entry twice")

        return check

    def row(self, *items: Check) -> Check:
        """Returns a check of a list with one entry for each check."""

        def check(name: str, value: Any) -> None:
            if not isinstance(value, list) or len(value) != len(items):
                raise self._error(f"{name} is {shown(value)}; a list of {len(items)} entries is expected")
            for place, (item, entry) in enumerate(zip(items, value, strict=True)):
                item(f"{name}[{place}]", entry)

        return check

    def object_of(self, fields: Mapping[str, Check], optional: tuple[str, ...] = ()) -> Check:
        """Returns a check of an object that has all of these fields but the optional ones, and no others."""
        is_object = self.of(OBJECT)

        def check(name: str, value: Any) -> None:
            is_object(name, value)
            place = f"{name}." if name else ""
            for key in value:
                if key not in fields:
                    raise self._error(f"{place}{printable(key)} is not a field of the format")
            for key, field in fields.items():
                if key in value:
                    field(place + key, value[key])
                elif key not in optional:
                    raise self._error(f"{place}{key} is missing")

        return check
