"""The arithmetic of cuts that look at the logits of all candidates: typical-p and eta. `Candidates` makes the
cuts; `ops/native/shape.c` does the same.

The order of a sum over all candidates is that in which NumPy adds up an array.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import NDArray

from glassloop.ops.exact import exp, exp_of, log_of
from glassloop.ops.rows import Float64

SLACK = 1e-9  # probability masses closer than this count as equal, so that rounding never decides a cut


def is_typical(logits: Float64, mass: float) -> NDArray[np.bool_]:
    """Returns for each candidate whether typical-p keeps it: those whose surprise is closest to the entropy
    and that together have this probability, with all that are as close as the last of these."""
    surprise = _surprise(logits)
    masses = exp(-surprise)
    distance = np.abs(surprise - float((masses * surprise).sum()))
    order = np.lexsort((-logits, distance))
    last = int(np.searchsorted(np.cumsum(masses[order]), mass - SLACK))
    border = distance[order[min(last, len(order) - 1)]]
    kept: NDArray[np.bool_] = distance <= border
    return kept


def eta_probability(logits: Float64, epsilon: float) -> float:
    """Returns the least probability that eta keeps: min(ε, √ε · exp(-entropy))."""
    surprise = _surprise(logits)
    entropy = float((exp(-surprise) * surprise).sum())
    return min(epsilon, sqrt(epsilon) * exp_of(-entropy))


def _surprise(logits: Float64) -> Float64:
    """Returns minus the log-probabilities of all survivors, with full precision: near the uniform
    distribution the differences that typical-p depends on are far smaller than the values."""
    below: Float64 = logits.max() - logits
    return below + log_of(float(exp(-below).sum()))
