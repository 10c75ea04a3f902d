"""Power sampling: chains of Metropolis–Hastings on suffixes, whose limit is p^alpha (Karan and Du, "Reasoning
with Sampling", 2025). `edit/power.py` runs the same chains for one text; here they are paths of a search.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from glassloop.decode.sampling import Sampling
from glassloop.edit.acceptance import EditLuck, SuffixChain
from glassloop.search.methods.options import BuiltInMethod, number, whole
from glassloop.search.search import Paths
from glassloop.search.solution import Path
from glassloop.search.voting import elect


@dataclass
class Power(BuiltInMethod):
    """Runs n chains. Each draws a text, and then `steps` times the rest of it again from a random token;
    the new text is accepted with the probability that makes p^alpha the limit. Answers with the most frequent
    value of the chains' last texts."""

    name: ClassVar[str] = "power"
    help: ClassVar[str] = "texts drawn from p^alpha, by drawing the ends of texts anew"

    n: int = whole(1, 1, help="How many chains.")
    alpha: float = number(4.0, 0.01, 100, help="The power.")
    steps: int = whole(8, 0, 10_000, help="How many times the end of each text is drawn anew.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._chains: dict[int, SuffixChain] = {}
        self._current: dict[int, Path] = {}  # the text of each chain, as a path
        self._chain_of: dict[Path, int] = {}
        self._place: dict[Path, int] = {}  # from which token on a proposal was drawn

    def sampling(self, given: Sampling) -> Sampling:
        return given if given.temperature > 0 else replace(given, temperature=1 / self.alpha)

    def start(self, paths: Paths) -> None:
        for index, path in enumerate(paths.start(self.n)):
            self._chain_of[path] = index

    def ended(self, paths: Paths, path: Path) -> None:
        index = self._chain_of[path]
        # Chains have draws of their own: their steps are numbered one after the other.
        first_step = index * (self.steps + 1)
        chain = self._chains.get(index)
        if chain is None:
            chain = SuffixChain(EditLuck(path.run.seed), self.alpha, path.run, first_step)
            self._chains[index], self._current[index] = chain, path
        elif path.ended_by in ("stop", "length", "repetition"):
            old = self._current[index]
            decision = chain.decide(path.run, self._place[path])
            verb = "accepted" if decision.accepted else "refused"
            drew = f"probability {decision.probability:.4f}, drew {decision.coin:.4f}"
            paths.note(f"{verb} in place of path {old.number}: {drew}", path)
            if decision.accepted:
                self._current[index] = path
        if chain.step < first_step + self.steps:
            chain.step += 1
            at = chain.place()
            for fork in paths.fork(self._current[index], at):
                self._chain_of[fork], self._place[fork] = index, at

    def answer(self, paths: Paths) -> Path | None:
        return elect(self._current.values()) if self._current else super().answer(paths)
