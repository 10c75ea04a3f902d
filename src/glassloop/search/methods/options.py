"""The base of the built-in methods: a dataclass whose fields are the options, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from glassloop.errors import GlassloopError
from glassloop.search.search import Search
from glassloop.util.shown import shown

MOST_PATHS = 1024


@dataclass
class BuiltInMethod(Search):
    """A built-in method. Attributes that begin with an underscore are the state of a search."""

    name: ClassVar[str] = ""
    help: ClassVar[str] = ""  # one line for lists of methods
    votes: ClassVar[bool] = False
    earlier: ClassVar[dict[str, Any]] = {}  # what records that do not have an option were made with

    def __post_init__(self) -> None:
        for each in fields(self):
            check = each.metadata.get("check")
            value = getattr(self, each.name)
            if check is not None and not check(value):
                expected = each.metadata["expected"]
                raise GlassloopError.about(each.name, f"is {shown(value)}; {expected} is expected")

    @property
    def options(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def fresh(self) -> Search:
        return type(self)(**self.options)


def whole(default: int | None, least: int, most: int = MOST_PATHS, help: str = "") -> Any:
    """Declares an option that is a whole number, or None if that is the default."""

    def check(value: object) -> bool:
        return (value is None and default is None) or (type(value) is int and least <= value <= most)

    expected = f"a whole number from {least} to {most}"
    return field(default=default, metadata={"check": check, "expected": expected, "help": help, "kind": int})


def number(default: float | None, least: float, most: float, help: str = "") -> Any:
    def check(value: object) -> bool:
        return (value is None and default is None) or (
            type(value) in (int, float) and least <= value <= most  # type: ignore[operator]
        )

    expected = f"a number from {least:g} to {most:g}"
    metadata = {"check": check, "expected": expected, "help": help, "kind": float}
    return field(default=default, metadata=metadata)


def text(default: str, help: str = "") -> Any:
    def check(value: object) -> bool:
        return isinstance(value, str) and 0 < len(value) <= 1000

    expected = "a text of 1 to 1000 characters"
    return field(default=default, metadata={"check": check, "expected": expected, "help": help, "kind": str})


def one_of(*allowed: str, help: str = "") -> Any:
    """Declares an option that is one of these words; the first is the default."""
    expected = f"one of {', '.join(allowed)}"
    metadata = {"check": lambda value: value in allowed, "expected": expected, "help": help, "kind": str}
    return field(default=allowed[0], metadata=metadata)
