"""The dense feed-forward: two matrices or, if gated, three."""

from __future__ import annotations

from typing import NamedTuple

from glassloop.model.config import DenseConfig
from glassloop.model.layers.parts import ForwardStep, Linear
from glassloop.ops.protocol import Array


class Dense(NamedTuple):
    """Each token goes through the same matrices on its own."""

    config: DenseConfig
    gate: Linear | None
    up: Linear
    down: Linear

    def forward(self, x: Array, step: ForwardStep) -> Array:
        """[rows, dim] to [rows, dim]."""
        ops, activation = step.ops, self.config.activation
        up = self.up.forward(x, step)  # [rows, ffn dim]
        if self.gate is None:
            h = ops.activate(up, activation)
        else:
            h = ops.gate(self.gate.forward(x, step), up, activation)
        return self.down.forward(h, step)
