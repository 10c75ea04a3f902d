"""What is said of a list of measurements: the median, and the middle half as the spread. Ratios are taken
round by round, since what disturbs one engine in a round disturbs its neighbour too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Summary:
    median: float
    low: float  # first quartile
    high: float  # third quartile
    count: int

    @property
    def spread(self) -> float:
        """Half the width of the middle half, as a share of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


def summarize(samples: Sequence[float | None]) -> Summary | None:
    known = sorted(sample for sample in samples if sample is not None)
    if not known:
        return None
    return Summary(median(known), quantile(known, 0.25), quantile(known, 0.75), len(known))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Between the two nearest of an ordered list."""
    at = share * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def ratio(ours: Sequence[float | None], theirs: Sequence[float | None]) -> float | None:
    """The median of the rounds' ratios, over the rounds that both have."""
    pairs = [
        mine / yours
        for mine, yours in zip(ours, theirs, strict=False)
        if mine is not None and yours is not None
    ]
    return median(pairs) if pairs else None
