"""Self-consistency: several paths, and the answer that most of them have (Wang et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from glassloop.search.methods.options import BuiltInMethod, one_of, whole
from glassloop.search.path_confidence import likelihood
from glassloop.search.search import Paths
from glassloop.search.solution import Path
from glassloop.search.voting import elect


@dataclass
class Vote(BuiltInMethod):
    """Starts n paths and answers with the most frequent value. Ties go to the value whose paths the model
    finds most likely, by the mean over the paths of the mean log-probability of a token."""

    name: ClassVar[str] = "vote"
    help: ClassVar[str] = "the answer that most of n paths have"
    votes: ClassVar[bool] = True
    earlier: ClassVar[dict[str, Any]] = {"ties": "first"}

    n: int = whole(8, 1, help="How many paths.")
    ties: str = one_of("likelihood", "first", help="What decides between values with as many votes.")

    def start(self, paths: Paths) -> None:
        paths.start(self.n)

    def answer(self, paths: Paths) -> Path | None:
        return elect(paths, sure=self._sure)

    def _sure(self, path: Path) -> float:
        return likelihood(path.run) if self.ties == "likelihood" else 0.0
