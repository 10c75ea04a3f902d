"""Experts with gradients: the routes of `ops/expert_choice.py` and the chosen experts, in torch.

The choice itself has no gradient; the weights of the chosen experts have one, by which a router learns.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from glassloop.ops.routing import Routing


def choose_experts(
    logits: torch.Tensor, routing: Routing, choice_bias: torch.Tensor | None, factors: torch.Tensor | None
) -> torch.Tensor:
    """Returns routes as the function of this name in `ops/expert_choice.py` does: [rows, 2 * chosen]"""
    scores = logits
    if routing.scores == "softmax":
        scores = logits.softmax(-1)
    elif routing.scores == "sigmoid":
        scores = logits.sigmoid()
    with torch.no_grad():
        plain = choice_bias is None and routing.groups == 1
        wanted = logits if plain else scores if choice_bias is None else scores + choice_bias
        order = _best(_in_best_groups(wanted, routing), routing.chosen)
        numbers = order.sort(-1).values
    if routing.scores == "mixer":
        weights = _mixed(logits, order, routing)
    else:
        weights = scores.gather(-1, numbers)
    if routing.scores == "chosen":
        weights = weights.softmax(-1)
    if routing.normalized:
        weights = weights / (weights.sum(-1, keepdim=True) + routing.epsilon)
    weights = weights * routing.factor
    if factors is not None:
        weights = weights * factors[numbers]
    return torch.cat([numbers.to(weights.dtype), weights], -1)


def sum_of_experts(
    x: torch.Tensor,
    routes: torch.Tensor,
    expert: Callable[[int, torch.Tensor], torch.Tensor],
    weigh_input: bool,
) -> torch.Tensor:
    """Returns the weighted sum of the outputs of each row's experts. `expert` computes one of them."""
    chosen = routes.shape[1] // 2
    numbers, weights = routes[:, :chosen].long(), routes[:, chosen:]
    out = torch.zeros_like(x)
    for number in numbers.unique().tolist():
        rows, places = (numbers == number).nonzero(as_tuple=True)
        weight = weights[rows, places, None].to(x.dtype)
        outputs = expert(number, x[rows] * weight) if weigh_input else expert(number, x[rows]) * weight
        out = out.index_add(0, rows, outputs.to(out.dtype))
    return out


def _best(wanted: torch.Tensor, count: int) -> torch.Tensor:
    return wanted.sort(dim=-1, descending=True, stable=True).indices[..., :count]


def _in_best_groups(wanted: torch.Tensor, routing: Routing) -> torch.Tensor:
    if routing.groups == 1:
        return wanted
    grouped = wanted.unflatten(-1, (routing.groups, -1))
    best = grouped.sort(-1, descending=True).values[..., :2].sum(-1)
    kept = torch.zeros_like(best, dtype=torch.bool).scatter(-1, _best(best, routing.chosen_groups), True)
    return grouped.masked_fill(~kept[..., None], -torch.inf).flatten(-2)


def _mixed(logits: torch.Tensor, order: torch.Tensor, routing: Routing) -> torch.Tensor:
    weights, left = [], logits
    for place in range(routing.chosen):
        at = order[:, place : place + 1]
        best = logits.gather(-1, at)
        far = (best - logits) / torch.maximum(logits.abs(), best) > 2 * routing.closeness
        weights.append(left.masked_fill(far, -torch.inf).softmax(-1).gather(-1, at))
        left = left.scatter(-1, at, -torch.inf)
    return torch.cat(weights, -1).gather(-1, order.argsort(-1))
