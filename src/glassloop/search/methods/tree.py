"""Tree search with a verifier: a path that fails is taken back to an earlier step, and goes on from there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from glassloop.search.methods.options import BuiltInMethod, text, whole
from glassloop.search.search import Paths
from glassloop.search.solution import BY_METHOD, Path
from glassloop.search.voting import best_judged


@dataclass
class Tree(BuiltInMethod):
    """Goes down one path, or `width` at a time, and verifies it at its end. If it fails, or a judge rejects a
    step of it, the search goes back to the last step that has been continued fewer than `children` times and
    continues from there with new luck; the cache has all that came before."""

    name: ClassVar[str] = "tree"
    help: ClassVar[str] = "a path that goes back to an earlier step when a verifier rejects it"
    needs_verifier: ClassVar[bool] = True

    n: int = whole(16, 1, help="How many branches at most.")
    width: int = whole(1, 1, help="How many paths run at the same time.")
    children: int = whole(2, 1, help="How many times a step is continued before the one before it is.")
    step: str = text("\n", help="The text that ends a step.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._continued: dict[tuple[int, ...], int] = {}  # how many branches go on from these tokens

    def start(self, paths: Paths) -> None:
        self._continued[()] = len(paths.start(min(self.n, self.width)))

    def grown(self, paths: Paths, path: Path) -> None:
        if path.at_step and paths.has_judge:
            verdict = paths.judge(path)
            if not verdict.passed:
                paths.stop(path, f"the judge rejects its last step: {verdict.reason or verdict.score}")
                self._go_back(paths, path, before=len(path.run.tokens))

    def ended(self, paths: Paths, path: Path) -> None:
        if paths.verify(path).passed:
            paths.finish(f"path {path.number} has passed")
        else:
            self._go_back(paths, path, before=len(path.run.tokens) + 1)

    def answer(self, paths: Paths) -> Path | None:
        # A path that the judge has stopped has the verdict of the judge, not of the verifier.
        whole = [path for path in paths if path.ended_by != BY_METHOD]
        return best_judged(whole) or best_judged(paths)

    def _go_back(self, paths: Paths, path: Path, before: int) -> None:
        """Forks a path at its last step before a place that has room for another branch."""
        if len(paths) >= self.n:
            return
        ids = path.run.token_ids
        for at in [*reversed([step for step in path.steps if step < before]), 0]:
            start = tuple(ids[:at])
            # A step that no branch was forked at has one continuation: the path itself.
            count = self._continued.get(start, 1)
            if at == 0 or count < self.children:
                self._continued[start] = count + 1
                if at:
                    paths.fork(path, at)
                else:
                    paths.start()
                return
