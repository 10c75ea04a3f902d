"""Power sampling: chains of Metropolis–Hastings on suffixes, whose limit is p^alpha (Karan and Du, "Reasoning
with Sampling", 2025). `edit/power.py` has the same sampler for one text; here chains are paths of a search.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp
from typing import ClassVar

from glassloop.decode.sampling import Sampling
from glassloop.edit.accept import ended, suffix_ratio
from glassloop.edit.dice import Dice
from glassloop.search.methods.options import BuiltInMethod, number, whole
from glassloop.search.search import Paths
from glassloop.search.solution import Path
from glassloop.search.voting import elect


@dataclass
class Power(BuiltInMethod):
    """Runs n chains. Each draws a text, and then `steps` times the rest of it anew from a random token on;
    the new text is accepted with the probability that makes p^alpha the limit. Answers with the most frequent
    value of the chains' last texts."""

    name: ClassVar[str] = "power"
    help: ClassVar[str] = "texts drawn from p^alpha, by drawing the ends of texts anew"

    n: int = whole(1, 1, help="How many chains.")
    alpha: float = number(4.0, 0.01, 100, help="The power.")
    steps: int = whole(8, 0, 10_000, help="How many times the end of each text is drawn anew.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._current: dict[int, Path] = {}  # the text of each chain
        self._chain: dict[Path, int] = {}
        self._taken: dict[int, int] = {}  # steps of each chain
        self._place: dict[Path, int] = {}  # from which token on a proposal was drawn

    def sampling(self, given: Sampling) -> Sampling:
        return given if given.temperature > 0 else replace(given, temperature=1 / self.alpha)

    def start(self, paths: Paths) -> None:
        for chain, path in enumerate(paths.start(self.n)):
            self._chain[path] = chain

    def ended(self, paths: Paths, path: Path) -> None:
        chain = self._chain[path]
        old, dice = self._current.get(chain), Dice(path.run.seed)
        # Chains have draws of their own: their steps are numbered one after the other.
        step = chain * (self.steps + 1) + self._taken.get(chain, 0)
        if old is None:
            self._current[chain] = path
        elif path.ended_by in ("stop", "length", "repetition"):
            chance = exp(min(0.0, suffix_ratio(old.run, path.run, self._place[path], self.alpha)))
            drawn = dice.coin(step)
            accepted = drawn < chance
            verb = "accepted" if accepted else "refused"
            paths.note(
                f"{verb} in place of path {old.number}: probability {chance:.4f}, drew {drawn:.4f}", path
            )
            if accepted:
                self._current[chain] = path
        taken = self._taken.get(chain, 0)
        if taken < self.steps:
            self._taken[chain] = taken + 1
            current = self._current[chain]
            at = dice.below(len(ended(current.run)), step + 1, 1)
            for made in paths.fork(current, at):
                self._chain[made], self._place[made] = chain, at

    def answer(self, paths: Paths) -> Path | None:
        return elect(self._current.values()) if self._current else super().answer(paths)
