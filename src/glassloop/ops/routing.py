"""How a token chooses its experts: the rule as data, and its definition in NumPy.

A router scores the experts, and each token takes the best of them, each with a weight. The result is an array
of routes: [rows, 2 * chosen], first the numbers of the experts, ascending, then their weights. `docs/ops.md`
defines the same in the arithmetic of the native op set.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from glassloop.ops.activations import Activation
from glassloop.ops.quant import Float32

# softmax and sigmoid: of the logits of all experts. chosen: softmax over the logits of the chosen ones.
# mixer: for each choice, softmax over the experts that were left then and are close to the best of them.
Scores = Literal["softmax", "sigmoid", "chosen", "mixer"]


class Routing(NamedTuple):
    experts: int  # of the layer
    chosen: int  # experts of a token
    scores: Scores = "softmax"
    normalized: bool = False  # the weights of a token are divided by their sum
    epsilon: float = 0.0  # which is added to that sum
    factor: float = 1.0  # of all weights
    groups: int = 1  # of experts next to each other; a token chooses from the best `chosen_groups`
    chosen_groups: int = 1
    closeness: float = 0.0  # of `mixer`: the largest distance from the best, relative to the logit

    def check(self) -> None:
        """Raises ValueError for numbers that do not fit each other."""
        most = min(self.experts, 256)
        if not 0 < self.experts <= 1 << 14:
            raise ValueError(f"experts is {self.experts}; 1 to {1 << 14} is expected")
        if not 0 < self.chosen <= most:
            raise ValueError(f"a token takes {self.chosen} experts; 1 to {most} is expected")
        if self.groups < 1 or self.experts % self.groups or not 0 < self.chosen_groups <= self.groups:
            raise ValueError(
                f"{self.chosen_groups} of {self.groups} groups do not divide {self.experts} experts"
            )
        if self.chosen > self.experts // self.groups * self.chosen_groups:
            raise ValueError(f"{self.chosen_groups} groups have fewer than {self.chosen} experts")
        if not 0 < self.factor < 1e9 or not 0 <= self.epsilon < 1 or not 0 <= self.closeness < 1e9:
            raise ValueError(f"the weights of experts have the factor {self.factor}; one above 0 is expected")


class Router(NamedTuple):
    """The weights of a router, in the form of an op set."""

    weight: Any  # [experts, dim], of floats
    bias: Any = None  # [experts], of the logits
    choice_bias: Any = None  # [experts], added to the scores for the choice alone
    factors: Any = None  # [experts], of the weights


class Expert(NamedTuple):
    """The matrices of one expert and their biases, in the form of an op set."""

    gate: Any
    up: Any
    down: Any
    gate_bias: Any = None
    up_bias: Any = None
    down_bias: Any = None


class Gating(NamedTuple):
    """What an expert does between its matrices: activate(gate) * (up + shift). With a limit, gate is at most
    that before, and up within plus and minus that. SiLU with a slope is gate * sigmoid(slope * gate)."""

    activation: Activation = "silu"
    limit: float | None = None
    slope: float = 1.0
    shift: float = 0.0


PLAIN_GATING = Gating()


def choose_experts(
    logits: Float32, routing: Routing, choice_bias: Float32 | None = None, factors: Float32 | None = None
) -> Float32:
    """Returns the routes of rows of logits: [rows, 2 * chosen]. A row with a NaN gets weights of NaN."""
    logits = np.where(np.isnan(logits).any(axis=1, keepdims=True), np.float32(np.nan), logits)
    with np.errstate(all="ignore"):
        scores = _scores(logits, routing)
        if choice_bias is None and routing.groups == 1:
            order = _best(logits, routing.chosen)  # scores only grow with logits
        else:
            wanted = scores if choice_bias is None else scores + choice_bias
            order = _best(_in_best_groups(wanted, routing), routing.chosen)
        numbers = np.sort(order, axis=1)
        weights = _mixed(logits, order, routing) if routing.scores == "mixer" else _taken(scores, numbers)
        if routing.scores == "chosen":
            weights = np.exp(weights - weights.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
        if routing.normalized:
            weights = weights / (weights.sum(axis=1, keepdims=True) + np.float32(routing.epsilon))
        weights = weights * np.float32(routing.factor)
        if factors is not None:
            weights = weights * factors[numbers]
    return np.concatenate([numbers.astype(np.float32), weights], axis=1)


def _scores(logits: Float32, routing: Routing) -> Float32:
    scores: Float32 = logits
    if routing.scores == "softmax":
        scores = np.exp(logits - logits.max(axis=1, keepdims=True))
        scores = scores / scores.sum(axis=1, keepdims=True)
    elif routing.scores == "sigmoid":
        scores = np.float32(1) / (np.float32(1) + np.exp(-logits))
    return scores


def _best(wanted: Float32, count: int) -> NDArray[np.intp]:
    """Returns the places of the highest values of each row, the highest first, ties by the lower place."""
    return np.argsort(-wanted, axis=1, kind="stable")[:, :count]


def _taken(values: Float32, places: NDArray[np.intp]) -> Float32:
    return np.take_along_axis(values, places, axis=1)


def _in_best_groups(wanted: Float32, routing: Routing) -> Float32:
    """Returns the values with those outside the best groups at minus infinity. A group is as good as the sum
    of its two best."""
    if routing.groups == 1:
        return wanted
    grouped = wanted.reshape(len(wanted), routing.groups, -1)
    best: Float32 = np.sort(grouped, axis=2)[:, :, ::-1][:, :, :2].sum(axis=2)
    kept = np.zeros(best.shape, np.bool_)
    np.put_along_axis(kept, _best(best, routing.chosen_groups), True, axis=1)
    values: Float32 = np.where(kept[:, :, None], grouped, np.float32(-np.inf)).reshape(wanted.shape)
    return values


def _mixed(logits: Float32, order: NDArray[np.intp], routing: Routing) -> Float32:
    """Returns the weights of `mixer`, by ascending number."""
    weights = np.empty(order.shape, np.float32)
    left = logits.copy()
    for place in range(routing.chosen):
        at = order[:, place : place + 1]
        best = _taken(logits, at)
        far = (best - logits) / np.maximum(np.abs(logits), best) > np.float32(2 * routing.closeness)
        powers = np.where(far, np.float32(0), np.exp(left - best))
        weights[:, place] = 1 / powers.sum(axis=1)
        np.put_along_axis(left, at, np.float32(-np.inf), axis=1)
    return _taken(weights, np.argsort(order, axis=1))
