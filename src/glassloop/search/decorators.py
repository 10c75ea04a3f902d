"""Decorators that register verifiers and methods of a user by name, for `--verify` and `--method` on the
command line.

A file of `--plugin` uses them: `@verifier("short")` on a function that judges a text, and
`@search_method("mine")` on a subclass of `Search`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from glassloop.errors import GlassloopError
from glassloop.search.methods import METHODS, OWN_METHODS
from glassloop.search.search import Search
from glassloop.search.verdict import Verifier
from glassloop.search.verify.checks import OWN_VERIFIERS, VERIFIERS
from glassloop.util.shown import shown

V = TypeVar("V", bound=Verifier)
M = TypeVar("M", bound=type[Search])
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


def verifier(name: str) -> Callable[[V], V]:
    """Registers a function, which returns True, False, a score or a Verdict for a text, as the verifier of
    this name."""
    _check_name("verifier", name, {each.partition(":")[0] for each in VERIFIERS})

    def register(function: V) -> V:
        if not callable(function):
            raise GlassloopError(f"verifier {name!r} is {shown(function)}; a function of a text is expected")
        OWN_VERIFIERS[name] = function
        return function

    return register


def search_method(name: str) -> Callable[[M], M]:
    """Registers a subclass of `Search` as the method of this name. The arguments of its constructor are its
    options."""
    _check_name("method", name, {*METHODS, "none"})

    def register(kind: M) -> M:
        if not (isinstance(kind, type) and issubclass(kind, Search)):
            raise GlassloopError(f"method {name!r} is {shown(kind)}; a subclass of Search is expected")
        kind.name = name
        OWN_METHODS[name] = kind
        return kind

    return register


def _check_name(what: str, name: object, taken: set[str]) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        expected = "letters, digits, _ and -, at most 64, are expected"
        raise GlassloopError(f"the name of a {what} is {shown(name)}; {expected}")
    if name in taken:
        raise GlassloopError(f"{what} {name!r} is built in; another name is expected")
