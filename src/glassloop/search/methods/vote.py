"""Self-consistency: several paths, and the answer that most of them have (Wang et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from glassloop.search.methods.options import Method, whole
from glassloop.search.search import Paths
from glassloop.search.solution import Path
from glassloop.search.voting import elect


@dataclass
class Vote(Method):
    """Starts n paths and answers with the most frequent value. Ties go to the value that came first, by the
    number of its path."""

    name: ClassVar[str] = "vote"
    help: ClassVar[str] = "the answer that most of n paths have"
    votes: ClassVar[bool] = True

    n: int = whole(8, 1, help="How many paths.")

    def start(self, paths: Paths) -> None:
        paths.start(self.n)

    def answer(self, paths: Paths) -> Path | None:
        return elect(paths)
