"""How sure the model was of a path, from the alternatives in its record.

The confidence of a token is the mean of -log p over the recorded alternatives (the model's likeliest tokens):
it is large where one token has most of the probability. The confidence of a group is the mean over a window
of tokens, and that of a path its lowest group (Fu et al., "Deep Think with Confidence", 2025).

The likelihood of a path needs no alternatives: it is made of the log-probabilities of its own tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isnan

import numpy as np

from glassloop.decode.chosen import ALTERNATIVE
from glassloop.ops.rows import Float64
from glassloop.record.run import Run
from glassloop.record.token import Token

WINDOW = 32  # tokens of a group: answers have hundreds of tokens, not the tens of thousands of the paper


def token_confidences(tokens: Sequence[Token]) -> Float64:
    """Returns the confidence of each token; NaN for one that was recorded without alternatives."""
    packed = [token.chosen.packed_alternatives for token in tokens]
    counts = {len(each) // ALTERNATIVE.itemsize for each in packed}
    if len(counts) == 1 and 0 not in counts:
        table = np.frombuffer(b"".join(packed), ALTERNATIVE)["raw_logprob"].reshape(len(packed), counts.pop())
        return np.asarray(-table.mean(axis=1))
    each = [np.frombuffer(data, ALTERNATIVE)["raw_logprob"] for data in packed]
    return np.array([-values.mean() if len(values) else np.nan for values in each], np.float64)


def group_confidences(confidences: Float64, window: int = WINDOW) -> Float64:
    """Returns the mean of every `window` tokens in a row, or of all if there are fewer; tokens without a
    confidence are left out."""
    values = confidences[~np.isnan(confidences)]
    if len(values) <= window:
        return values.mean(keepdims=True) if len(values) else values
    sums = np.cumsum(np.concatenate([[0.0], values]))
    return np.asarray((sums[window:] - sums[:-window]) / window)


def lowest_group(confidences: Float64, window: int = WINDOW) -> float | None:
    """Returns the confidence of the least confident group, or None if there is no number."""
    groups = group_confidences(confidences, window)
    return float(groups.min()) if len(groups) else None


def likelihood(run: Run, by: str = "mean") -> float:
    """Returns the mean or the sum of the model's own log-probabilities of a run's tokens, the one that ended
    it included. It is minus infinity for a run without tokens, and if one of them is not known."""
    logprobs = [token.raw_logprob for token in [*run.tokens, *([] if run.end is None else [run.end])]]
    total = sum(logprobs) if logprobs else -inf
    if isnan(total):
        return -inf
    return total / len(logprobs) if logprobs and by == "mean" else total


def reached_by(lowest: Sequence[float], share: float) -> float:
    """Returns the confidence that a share of the paths reaches, from the lowest group of each."""
    place = min(int(np.floor((1 - share) * len(lowest) + 1e-9)), len(lowest) - 1)
    return sorted(lowest)[place]
