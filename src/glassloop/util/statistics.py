"""The statistics of an evaluation: Wilson's interval for a share, McNemar's exact test for paired results."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

Z_95 = 1.959963984540054  # the 97.5 % quantile of the normal distribution


class Interval(NamedTuple):
    """A share and its 95 % interval."""

    share: float
    low: float
    high: float


def wilson(successes: int, trials: int, z: float = Z_95) -> Interval:
    """Returns the share of successes with Wilson's score interval; from 0 to 1 if there were no trials."""
    if not trials:
        return Interval(0.0, 0.0, 1.0)
    share = successes / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / (1 + z * z / trials)
    low = 0.0 if not successes else max(0.0, centre - half)
    high = 1.0 if successes == trials else min(1.0, centre + half)
    return Interval(share, low, high)


class Paired(NamedTuple):
    """Two methods on the same items: how many each alone has right, and McNemar's exact two-sided p."""

    first_only: int
    second_only: int
    difference: float  # of the shares: the second's less the first's
    p: float


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> Paired:
    """Returns the comparison of two methods, whose results are in the order of the same items."""
    pairs = list(zip(first, second, strict=True))
    only_first = sum(one and not other for one, other in pairs)
    only_second = sum(other and not one for one, other in pairs)
    difference = (only_second - only_first) / len(pairs) if pairs else 0.0
    return Paired(only_first, only_second, difference, sign_test(only_first, only_second))


def sign_test(one: int, other: int) -> float:
    """Returns the two-sided p of a fair coin that shows one side `one` times and the other `other` times."""
    trials = one + other
    tail = ways = 1
    for heads in range(min(one, other)):
        ways = ways * (trials - heads) // (heads + 1)  # to choose one more
        tail += ways
    return min(1.0, float(tail * 2 / 2**trials))
