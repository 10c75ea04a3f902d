"""A mixer or a feed-forward in its place: norms, and the residual stream that it adds to."""

from __future__ import annotations

from typing import NamedTuple

from glassloop.model.layers.attention import Attention
from glassloop.model.layers.dense import Dense
from glassloop.model.layers.experts import Experts
from glassloop.model.layers.parts import ForwardStep, Norm
from glassloop.model.layers.short_conv import ShortConv
from glassloop.ops.protocol import Array


class Together(NamedTuple):
    """A mixer and a feed-forward that read the same input."""

    mixer: Attention | ShortConv
    feed_forward: Dense | Experts

    def forward(self, x: Array, step: ForwardStep) -> Array:
        """[rows, dim] to [rows, dim]."""
        return step.ops.add(self.mixer.forward(x, step), self.feed_forward.forward(x, step))


SublayerKind = Attention | ShortConv | Dense | Experts | Together


class Sublayer(NamedTuple):
    """A mixer or a feed-forward, or both, with norms: of the input, of the output, and of the sum."""

    kind: SublayerKind
    norm: Norm | None
    output_norm: Norm | None
    sum_norm: Norm | None
    scale: float = 1.0  # of what it adds
    stream_scale: float = 1.0  # of the sum

    def forward(self, x: Array, step: ForwardStep) -> Array:
        """Returns the residual stream with what this sublayer adds to it. [rows, dim]"""
        ops = step.ops
        h = x if self.norm is None else self.norm.forward(x, ops)
        h = self.kind.forward(h, step)
        if self.output_norm is not None:
            h = self.output_norm.forward(h, ops)
        if self.scale != 1.0:
            h = ops.scale(h, self.scale)
        x = ops.add(x, h)
        if self.stream_scale != 1.0:
            x = ops.scale(x, self.stream_scale)
        return x if self.sum_norm is None else self.sum_norm.forward(x, ops)

    @property
    def parts(self) -> tuple[Attention | ShortConv | Dense | Experts, ...]:
        """The mixer or the feed-forward, or both."""
        return tuple(self.kind) if isinstance(self.kind, Together) else (self.kind,)
