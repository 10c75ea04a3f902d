"""The short convolution of LFM2: a mixer that sees the last few tokens, whatever the length of the text."""

from __future__ import annotations

from typing import NamedTuple

from glassloop.model.config import ShortConvConfig
from glassloop.model.layers.parts import ForwardStep, Linear
from glassloop.ops.kv_cache import Place
from glassloop.ops.protocol import Array


class ShortConv(NamedTuple):
    """Each channel is a weighted sum over the last tokens, with a gate before it and one after it."""

    config: ShortConvConfig
    place: Place  # where its states and rows are
    before: Linear
    after: Linear
    into: Linear
    kernel: Array  # [width, channels]
    bias: Array | None
    out: Linear

    def forward(self, x: Array, step: ForwardStep) -> Array:
        """[rows, dim] to [rows, dim]."""
        ops = step.ops
        gated = ops.gate(self.before.forward(x, step), self.into.forward(x, step), "none")
        mixed = ops.conv(gated, self.kernel, self.bias, "none", step.batch, step.pages, self.place)
        return self.out.forward(ops.gate(self.after.forward(x, step), mixed, "none"), step)
