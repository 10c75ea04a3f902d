"""Voting by confidence with online stopping, after "Deep Think with Confidence" (Fu et al., 2025).

Warm-up paths run to their end and set a threshold: the confidence that a share `keep` of them reaches. Of the
paths after them, one stops as soon as a group of its tokens falls below it. Every complete path votes with
its confidence as weight, and the search ends when one answer has the share `consensus` of the votes, or is
ahead of the next one by `lead` paths of mean weight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from glassloop.decode.sampling import Sampling
from glassloop.search.methods.options import MOST_PATHS, BuiltInMethod, number, whole
from glassloop.search.path_confidence import WINDOW, lowest_group, reached_by, token_confidences
from glassloop.search.search import Paths
from glassloop.search.solution import Path
from glassloop.search.voting import consensus, elect, votes_of


@dataclass
class Confidence(BuiltInMethod):
    """Confidence-weighted, filtered voting that stops paths of low confidence while they are written."""

    name: ClassVar[str] = "confidence"
    help: ClassVar[str] = "a vote weighted by confidence, which stops unsure paths and ends at a consensus"
    votes: ClassVar[bool] = True

    n: int = whole(16, 1, help="How many paths at most, those of the warm-up included.")
    warmup: int = whole(6, 1, help="How many paths run to their end first and set the threshold.")
    wave: int = whole(4, 1, help="How many paths start at a time after the warm-up.")
    keep: float = number(0.9, 0.01, 1, help="The share of the warm-up paths that reaches the threshold.")
    consensus: float = number(0.75, 0.5, 1, help="The share of the votes at which the search ends.")
    lead: float | None = number(None, 0.5, MOST_PATHS, help="The lead, in paths, at which the search ends.")
    window: int = whole(WINDOW, 1, 1 << 20, help="Tokens in a group.")
    stride: int = whole(32, 1, 1 << 20, help="After how many tokens each path is looked at.")
    alternatives: int = whole(20, 2, 64, help="Alternatives of a token that its confidence is made of.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._threshold: float | None = None
        self._wave: list[Path] = []

    def sampling(self, given: Sampling) -> Sampling:
        return replace(given, logprobs=max(given.logprobs, self.alternatives))

    def start(self, paths: Paths) -> None:
        self._wave = paths.start(min(self.warmup, self.n))

    def grown(self, paths: Paths, path: Path) -> None:
        if self._threshold is None:
            return
        # The groups that end in the tokens of this round; earlier ones have been looked at.
        tokens = path.run.tokens[-self.stride - self.window + 1 :]
        if len(tokens) < self.window:
            return
        lowest = lowest_group(token_confidences(tokens), self.window)
        if lowest is not None and lowest < self._threshold:
            paths.stop(path, f"confidence {lowest:.3f} is below {self._threshold:.3f}")
            self._after_wave(paths)

    def ended(self, paths: Paths, path: Path) -> None:
        self._after_wave(paths)

    def answer(self, paths: Paths) -> Path | None:
        return elect(self._voting(paths), self._weight)

    def _after_wave(self, paths: Paths) -> None:
        """Once all paths of a wave have ended: sets the threshold, and starts the next wave if it is
        needed."""
        if any(path.running for path in self._wave):
            return
        if self._threshold is None:
            self._threshold = self._percentile(paths)
        elect(self._voting(paths), self._weight)
        votes = votes_of(paths)
        share = consensus(votes)
        if share >= self.consensus:
            paths.finish(f"{next(iter(votes))!r} has {share:.0%} of the votes")
        elif self.lead is not None and (ahead := self._ahead(paths)) >= self.lead:
            paths.finish(f"{next(iter(votes))!r} leads by {ahead:.1f} paths")
        elif len(paths) < self.n:
            self._wave = paths.start(min(self.wave, self.n - len(paths)))

    def _ahead(self, paths: Paths) -> float:
        """Returns by how many paths of mean weight the first answer is ahead of the second."""
        weights = [path.vote for path in paths if path.vote is not None]
        best, second, *_ = *votes_of(paths).values(), 0.0, 0.0
        return (best - second) / (sum(weights) / len(weights)) if sum(weights) > 0 else 0.0

    def _percentile(self, paths: Paths) -> float:
        """Returns the confidence that a share `keep` of the paths reaches, and records it."""
        threshold = reached_by([self._weight(path) for path in paths], self.keep)
        paths.note(f"the threshold of confidence is {threshold:.3f}")
        return threshold

    def _voting(self, paths: Paths) -> list[Path]:
        """Returns the paths that were not filtered out. The threshold holds for the warm-up paths too."""
        threshold = self._threshold
        kept = [path for path in paths if threshold is None or self._weight(path) >= threshold]
        for path in paths:
            path.vote = None
        return kept if any(path.value is not None for path in kept) else list(paths)

    def _weight(self, path: Path) -> float:
        return path.confidence or 0.0
