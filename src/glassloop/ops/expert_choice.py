"""The choice of experts by the rule of `ops/routing.py`, in NumPy: the definition."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from glassloop.ops.quant import Float32
from glassloop.ops.routing import Routing


def choose_experts(
    logits: Float32, routing: Routing, choice_bias: Float32 | None = None, factors: Float32 | None = None
) -> Float32:
    """Returns the routes of rows of logits: [rows, 2 * chosen]. A row with a NaN gets weights of NaN,
    for the first experts."""
    spoiled = np.isnan(logits).any(axis=1).reshape(-1)
    logits = np.where(spoiled[:, None], np.float32(0), logits)
    with np.errstate(all="ignore"):
        scores = _scores(logits, routing)
        if choice_bias is None and routing.groups == 1:
            order = _best(logits, routing.chosen)  # scores only grow with logits
        else:
            wanted = scores if choice_bias is None else scores + choice_bias
            order = _best(_in_best_groups(wanted, routing), routing.chosen)
        order[spoiled] = np.arange(routing.chosen)
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
    weights[spoiled] = np.nan
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
