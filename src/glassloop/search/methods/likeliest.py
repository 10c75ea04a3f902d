"""Best of n by the model's own likelihood: a baseline, since likely texts are often short or empty ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from glassloop.search.methods.options import BuiltInMethod, one_of, whole
from glassloop.search.path_confidence import likelihood
from glassloop.search.search import Paths
from glassloop.search.solution import Path
from glassloop.search.voting import voters


@dataclass
class Likelihood(BuiltInMethod):
    """Starts n paths and answers with the one that the model finds most likely: by the mean of the
    log-probabilities of its tokens, or by their sum."""

    name: ClassVar[str] = "likelihood"
    help: ClassVar[str] = "the path of n that the model itself finds most likely"

    n: int = whole(8, 1, help="How many paths.")
    by: str = one_of("mean", "sum", help="Whether the mean or the sum of the log-probabilities counts.")

    def start(self, paths: Paths) -> None:
        paths.start(self.n)

    def answer(self, paths: Paths) -> Path | None:
        able = voters(paths)
        return max(able, key=lambda path: (likelihood(path.run, self.by), -path.number), default=None)
