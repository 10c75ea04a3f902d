"""One path: with the options as they are, or greedy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from glassloop.decode.sampling import Sampling
from glassloop.search.methods.options import BuiltInMethod
from glassloop.search.search import Paths


@dataclass
class Single(BuiltInMethod):
    """One path with the options as they are: what `generate` and `chat` do."""

    name: ClassVar[str] = "none"
    help: ClassVar[str] = "one path, with the options as they are"

    def start(self, paths: Paths) -> None:
        paths.start()


@dataclass
class Greedy(Single):
    """One path with temperature 0."""

    name: ClassVar[str] = "greedy"
    help: ClassVar[str] = "one path, always the most likely token"

    def sampling(self, given: Sampling) -> Sampling:
        return replace(given, temperature=0.0)
