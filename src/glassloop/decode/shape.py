"""The cuts that look at every candidate: typical-p, top-n-sigma, eta. `ops/native/shape.c` does the same.

The order of a sum over all candidates is that in which NumPy adds up an array.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from glassloop.ops.exact import exp, exp_of, log_of
from glassloop.ops.rows import Float64

if TYPE_CHECKING:
    from glassloop.decode.candidates import Candidates

SLACK = 1e-9  # probability masses closer than this count as equal, so that rounding never decides a cut


def keep_typical(candidates: Candidates, mass: float) -> Candidates:
    """Keeps those whose surprise is closest to the entropy and that together have this probability, with all
    that are as close as the last of these."""
    ids, logits = candidates.everyone()
    surprise = _surprise(logits)
    masses = exp(-surprise)
    distance = np.abs(surprise - float((masses * surprise).sum()))
    order = np.lexsort((-logits, distance))
    last = int(np.searchsorted(np.cumsum(masses[order]), mass - SLACK))
    border = distance[order[min(last, len(order) - 1)]]
    kept = np.zeros(candidates.vocab_size, np.bool_)
    kept[ids[distance <= border]] = True
    return candidates.only(kept)


def keep_deviations(candidates: Candidates, deviations: float) -> Candidates:
    """Keeps those whose logit is within so many standard deviations of the highest."""
    _, logits = candidates.everyone()
    return candidates.at_least(float(candidates.values[0]) - deviations * float(logits.std()))


def keep_eta(candidates: Candidates, epsilon: float) -> Candidates:
    """Keeps those with at least probability min(ε, √ε · exp(-entropy))."""
    _, logits = candidates.everyone()
    surprise = _surprise(logits)
    entropy = float((exp(-surprise) * surprise).sum())
    border = min(epsilon, sqrt(epsilon) * exp_of(-entropy))
    return candidates.at_least(candidates.logit_of(border))


def _surprise(logits: Float64) -> Float64:
    """Returns minus the log-probabilities of all survivors, with full precision: near the uniform
    distribution the differences that typical-p depends on are far smaller than the values."""
    below: Float64 = logits.max() - logits
    return below + log_of(float(exp(-below).sum()))
