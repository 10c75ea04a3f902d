"""Best of n by a verifier, which ends the search when a path passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from glassloop.search.methods.options import BuiltInMethod, whole
from glassloop.search.search import Paths
from glassloop.search.solution import Path
from glassloop.search.voting import best_judged


@dataclass
class Best(BuiltInMethod):
    """Starts n paths, `width` of them at a time, and verifies each at its end. The first that passes is the
    answer, and the others stop; if none passes, the one with the highest score."""

    name: ClassVar[str] = "best"
    help: ClassVar[str] = "the first of n paths that a verifier accepts, or the one with the best score"
    needs_verifier: ClassVar[bool] = True

    n: int = whole(8, 1, help="How many paths at most.")
    width: int | None = whole(None, 1, help="How many paths run at the same time; all by default.")
    stride: int = whole(32, 1, 1 << 20, help="After how many tokens the others stop when one has passed.")

    def start(self, paths: Paths) -> None:
        paths.start(min(self.n, self.width or self.n))

    def ended(self, paths: Paths, path: Path) -> None:
        if paths.verify(path).passed:
            paths.finish(f"path {path.number} has passed")
        elif len(paths) < self.n:
            paths.start()

    def answer(self, paths: Paths) -> Path | None:
        return best_judged(paths)
