"""The base of the built-in methods: a dataclass whose fields are the options, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from glassloop.search.search import Search
from glassloop.util.check import ValueRule, number_between, or_none, require, whole_between
from glassloop.util.check import one_of as one_of_rule

MOST_PATHS = 1024


@dataclass
class BuiltInMethod(Search):
    """A built-in method. Attributes that begin with an underscore are the state of a search."""

    name: ClassVar[str] = ""
    help: ClassVar[str] = ""  # one line for lists of methods
    votes: ClassVar[bool] = False
    earlier: ClassVar[dict[str, Any]] = {}  # what records that do not have an option were made with

    def __post_init__(self) -> None:
        for option in fields(self):
            if "rule" in option.metadata:
                require(option.name, getattr(self, option.name), option.metadata["rule"])

    @property
    def options(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def fresh(self) -> Search:
        return type(self)(**self.options)


def whole(default: int | None, least: int, most: int = MOST_PATHS, help: str = "") -> Any:
    """Declares an option that is a whole number, or None if that is the default."""
    return _option(default, whole_between(least, most), help, int)


def number(default: float | None, least: float, most: float, help: str = "") -> Any:
    """Declares an option that is a number, or None if that is the default."""
    return _option(default, number_between(least, most), help, float)


def text(default: str, help: str = "") -> Any:
    rule = ValueRule("a text of 1 to 1000 characters", lambda it: isinstance(it, str) and 0 < len(it) <= 1000)
    return _option(default, rule, help, str)


def one_of(*allowed: str, help: str = "") -> Any:
    """Declares an option that is one of these words; the first is the default."""
    return _option(allowed[0], one_of_rule(*allowed), help, str)


def _option(default: Any, rule: ValueRule, help: str, kind: type) -> Any:
    if default is None:
        rule = or_none(rule)
    return field(default=default, metadata={"rule": rule, "help": help, "kind": kind})
