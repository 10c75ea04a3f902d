"""Budget forcing: a model that ends too early is made to go on, and one that does not end is made to answer
(Muennighoff et al., "s1: Simple test-time scaling", 2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from glassloop.search.methods.options import BuiltInMethod, text, whole
from glassloop.search.search import Paths
from glassloop.search.solution import Path
from glassloop.search.voting import elect


@dataclass
class Forcing(BuiltInMethod):
    """Continues each of n paths with `wait` when the model ends it, `waits` times. After `thinking` tokens
    that have not come to an end it forces `end`, and the model answers. Each continuation is a fork: what the
    model had ended stays. Answers with the most frequent value of the last paths."""

    name: ClassVar[str] = "budget"
    help: ClassVar[str] = "a path that is told to wait when it ends early, and to answer when it is late"

    n: int = whole(1, 1, help="How many paths.")
    waits: int = whole(2, 0, help="How many times a path that ends is continued.")
    wait: str = text("\nWait", help="The text that a path is continued with.")
    thinking: int | None = whole(None, 1, 1 << 20, help="Tokens after which the end of thinking is forced.")
    end: str = text("\n\nThe final answer is", help="The text that ends thinking, such as </think>.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.stride = self.thinking
        self._last: dict[int, Path] = {}  # the newest path of each chain of forks, by the first one's number
        self._chain: dict[Path, int] = {}
        self._waited: dict[int, int] = {}
        self._told: set[int] = set()  # chains whose end of thinking was forced

    def start(self, paths: Paths) -> None:
        for path in paths.start(self.n):
            self._last[path.number], self._chain[path] = path, path.number

    def grown(self, paths: Paths, path: Path) -> None:
        chain = self._chain[path]
        if self.thinking is None or chain in self._told or len(path.run.tokens) < self.thinking:
            return
        self._told.add(chain)
        self._continue(paths, path, self.end)
        paths.stop(path, f"its thinking has ended after {len(path.run.tokens)} tokens")

    def ended(self, paths: Paths, path: Path) -> None:
        chain = self._chain[path]
        waited = self._waited.get(chain, 0)
        if path.complete and chain not in self._told and waited < self.waits:
            self._waited[chain] = waited + 1
            self._continue(paths, path, self.wait)

    def answer(self, paths: Paths) -> Path | None:
        """Votes with the last path of each chain, or the last one before it that has a value."""
        chosen = []
        for chain, path in self._last.items():
            members = [each for each in paths if self._chain[each] == chain]
            good = [each for each in members if each.complete and each.value is not None]
            chosen.append(good[-1] if good else path)
        return elect(chosen)

    def _continue(self, paths: Paths, path: Path, words: str) -> None:
        chain = self._chain[path]
        for forked_path in paths.fork(path, text=words):
            self._last[chain], self._chain[forked_path] = forked_path, chain
