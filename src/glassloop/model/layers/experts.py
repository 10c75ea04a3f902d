"""Experts: a feed-forward in which each token goes through a few of many, and perhaps a shared one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from glassloop.model.config import ExpertsConfig
from glassloop.model.layers.dense import Dense
from glassloop.model.layers.parts import ForwardStep
from glassloop.ops.protocol import Array
from glassloop.ops.routing import Expert, Gating, Router, Routing

# A shared expert with a gate is an expert that every token takes, with the sigmoid of its gate as the weight.
ALWAYS = Routing(experts=1, chosen=1, scores="sigmoid")


class Experts(NamedTuple):
    """Each token goes through the experts that its row of the router chooses, whatever its neighbours do."""

    config: ExpertsConfig
    router: Router
    experts: Sequence[Expert]
    shared: Dense | None
    gated_shared: tuple[Router, Expert] | None

    def forward(self, x: Array, step: ForwardStep) -> Array:
        """[rows, dim] to [rows, dim]."""
        ops, config = step.ops, self.config
        routes = ops.route(x, self.router, config.routing)  # [rows, 2 * chosen]
        y = ops.experts(x, routes, self.experts, config.gating, config.weigh_input)
        if self.shared is not None:
            y = ops.add(y, self.shared.forward(x, step))
        if self.gated_shared is not None and config.shared is not None:
            gate, expert = self.gated_shared
            always = ops.route(x, gate, ALWAYS)
            y = ops.add(y, ops.experts(x, always, [expert], Gating(config.shared.activation), False))
        return y
