"""From logits to a token: temperature, then the highest of log-probability plus luck. Greedy has no luck."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glassloop.decode.luck import luck
from glassloop.errors import ModelError
from glassloop.ops.quant import Float32


@dataclass(frozen=True)
class Choice:
    id: int
    logprob: float  # after temperature: the distribution that was drawn from
    raw_logprob: float  # the model's own


def choose(logits: Float32, temperature: float, seed: int, position: int) -> Choice:
    """Choose from one row of logits over the whole vocabulary. Ties go to the lower id."""
    if np.isnan(logits).any():
        raise ModelError(f"the model gave logits that are not numbers at position {position}")
    raw = log_softmax(logits.astype(np.float64))
    if temperature == 0:
        best = int(np.argmax(logits))
        return Choice(best, 0.0, float(raw[best]))
    drawn_from = log_softmax(raw / temperature)
    best = int(np.argmax(drawn_from + luck(seed, 0, position, np.arange(len(raw)))))
    return Choice(best, float(drawn_from[best]), float(raw[best]))


def log_softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted: NDArray[np.float64] = scores - scores.max()
    return shifted - float(np.log(np.exp(shifted).sum()))
