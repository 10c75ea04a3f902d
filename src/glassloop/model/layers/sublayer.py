"""A mixer or a feed-forward in its place: norms, and the residual stream that it adds to."""

from __future__ import annotations

from typing import NamedTuple

from glassloop.model.layers.attention import Attention
from glassloop.model.layers.dense import Dense
from glassloop.model.layers.experts import Experts
from glassloop.model.layers.parts import ForwardStep, Norm
from glassloop.ops.protocol import Array


class Sublayer(NamedTuple):
    """A mixer or a feed-forward with its norms: of its input, of its output, and of the sum."""

    kind: Attention | Dense | Experts
    norm: Norm | None
    output_norm: Norm | None
    sum_norm: Norm | None

    def forward(self, x: Array, step: ForwardStep) -> Array:
        """Returns the residual stream with what this sublayer adds to it. [rows, dim]"""
        ops = step.ops
        h = x if self.norm is None else self.norm.forward(x, ops)
        h = self.kind.forward(h, step)
        if self.output_norm is not None:
            h = self.output_norm.forward(h, ops)
        x = ops.add(x, h)
        return x if self.sum_norm is None else self.sum_norm.forward(x, ops)
