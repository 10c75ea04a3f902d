"""Summary of a list of measurements: the median, with the interquartile range as the spread. Ratios are
computed per round, since noise in a round affects all engines in it.
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
        """Half the interquartile range, relative to the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


def summarize(samples: Sequence[float | None]) -> Summary | None:
    known = sorted(sample for sample in samples if sample is not None)
    if not known:
        return None
    return Summary(median(known), quantile(known, 0.25), quantile(known, 0.75), len(known))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Returns a quantile of a sorted list, interpolated between the two nearest values."""
    at = share * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def ratio(ours: Sequence[float | None], theirs: Sequence[float | None]) -> float | None:
    """Returns the median of the ratios per round, over the rounds that both have."""
    pairs = [
        mine / yours
        for mine, yours in zip(ours, theirs, strict=False)
        if mine is not None and yours is not None
    ]
    return median(pairs) if pairs else None
