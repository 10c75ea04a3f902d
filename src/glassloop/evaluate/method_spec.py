"""Methods as the command line names them: `vote:8`, `confidence:16,keep=0.5`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from glassloop.errors import GlassloopError
from glassloop.util.shown import shown


@dataclass(frozen=True)
class MethodSpec:
    """A method with its options, and the text that it was made from, which names it in tables."""

    text: str
    name: str
    options: tuple[tuple[str, Any], ...]

    @property
    def n(self) -> int | None:
        count: int | None = dict(self.options).get("n")
        return count


def parse_method(text: str) -> MethodSpec:
    """Returns the method that a text names: a name, a number of paths after a colon, options after commas."""
    head, *rest = text.split(",")
    name, colon, count = head.partition(":")
    options: dict[str, Any] = {}
    if colon:
        if not count.isdecimal() or not 1 <= int(count) <= 1024:
            problem = f"is {shown(text)}; a number of paths from 1 to 1024 is expected after the colon"
            raise GlassloopError.about("method", problem)
        options["n"] = int(count)
    for part in rest:
        key, equals, value = part.partition("=")
        if not equals or not key.isidentifier():
            problem = f"is {shown(text)}; NAME:N,OPTION=VALUE is expected"
            raise GlassloopError.about("method", problem)
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    if not name:
        raise GlassloopError.about("method", f"is {shown(text)}; a name is expected")
    return MethodSpec(text, name, tuple(options.items()))


def parse_methods(texts: Sequence[str]) -> list[MethodSpec]:
    """Returns the methods of a list of texts. A text may have several: `greedy,vote:8`. A part with an
    equals sign is an option of the method before it."""
    names: list[str] = []
    for text in texts:
        for part in text.split(","):
            if "=" in part and names:
                names[-1] += f",{part}"
            elif part.strip():
                names.append(part.strip())
    if len(set(names)) < len(names):
        raise GlassloopError.about("method", f"has {shown(names)}; every method is expected once")
    return [parse_method(text) for text in names]
