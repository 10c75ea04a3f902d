"""Beam search over steps of reasoning, such as lines: a judge scores what each path has written so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from glassloop.search.methods.options import BuiltInMethod, text, whole
from glassloop.search.search import Paths
from glassloop.search.solution import Path


@dataclass
class BeamSearch(BuiltInMethod):
    """Runs n paths until each has completed a step, keeps the best `keep` of them, and lets those continue as
    n paths again: each in its own way, and as forks with new luck. The judge's score counts; without a judge
    the mean log-probability of the tokens."""

    name: ClassVar[str] = "beam"
    help: ClassVar[str] = "n paths, of which a judge keeps the best after each step"

    n: int = whole(8, 1, help="How many paths run at the same time.")
    keep: int = whole(2, 1, help="How many of them are continued after a step.")
    step: str = text("\n", help="The text that ends a step.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._beams: list[Path] = []  # the paths that compete now, ended ones included

    def start(self, paths: Paths) -> None:
        self._beams = paths.start(self.n)

    def grown(self, paths: Paths, path: Path) -> None:
        if path.at_step:
            paths.hold(path)
            self._select(paths)

    def ended(self, paths: Paths, path: Path) -> None:
        self._select(paths)

    def answer(self, paths: Paths) -> Path | None:
        ended = [path for path in self._beams if path.ended_by != "error"]
        return max(
            ended, key=lambda path: (path.complete, self._score(paths, path), -path.number), default=None
        )

    def _select(self, paths: Paths) -> None:
        """Keeps the best, once every path has completed a step or ended."""
        if any(path.running and not path.held for path in self._beams):
            return
        if not any(path.running for path in self._beams):
            return
        scores = {path: self._score(paths, path) for path in self._beams}
        ranked = sorted(self._beams, key=lambda path: (-scores[path], path.number))
        kept, dropped = ranked[: self.keep], ranked[self.keep :]
        for path in dropped:
            best = scores[kept[-1]]
            paths.stop(path, f"score {scores[path]:.4g} is below that of the {len(kept)} best ({best:.4g})")
        self._beams = list(kept)
        open_paths = [path for path in kept if path.running]
        for place, path in enumerate(open_paths):
            paths.release(path)
            copies = self.n // len(open_paths) + (place < self.n % len(open_paths)) - 1
            self._beams += paths.fork(path, count=copies)

    def _score(self, paths: Paths, path: Path) -> float:
        if paths.has_judge:
            return paths.judge(path).score
        return path.run.logprob / max(1, len(path.run.tokens))
