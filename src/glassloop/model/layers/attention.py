"""Attention: a mixer whose keys and values are kept in pages, one of each for every token."""

from __future__ import annotations

from typing import NamedTuple

from glassloop.model.config import AttentionConfig
from glassloop.model.layers.parts import ForwardStep, Linear, Norm
from glassloop.ops.kv_cache import Place
from glassloop.ops.protocol import Array
from glassloop.ops.quant import Float32


class Attention(NamedTuple):
    """Each token looks at those before it in its branch."""

    config: AttentionConfig
    place: Place  # where its keys and values are in the pages
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    q_norm: Norm | None
    k_norm: Norm | None
    gate: Linear | None = None
    sinks: Array | None = None  # [heads]
    sink_scores: Float32 | None = None  # the same, for the lens

    def forward(self, x: Array, step: ForwardStep) -> Array:
        """[rows, dim] to [rows, dim]."""
        ops, config = step.ops, self.config
        q = ops.split_heads(self.q.forward(x, step), config.heads)  # [rows, heads, head dim]
        k = ops.split_heads(self.k.forward(x, step), config.kv_heads)  # [rows, kv heads, head dim]
        v = ops.split_heads(self.v.forward(x, step), config.kv_heads)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm.forward(q, ops), self.k_norm.forward(k, ops)
        if config.rope is not None:
            turn = step.angles[config.rope]
            q, k = ops.rotate(q, turn), ops.rotate(k, turn)
        about = self.place, config.scale, config.window, config.softcap, self.sinks
        mixed = ops.attention(q, k, v, step.batch, step.pages, *about)  # [rows, heads * head dim]
        if self.gate is not None:
            mixed = ops.gate(self.gate.forward(x, step), mixed, "sigmoid")
        return self.o.forward(mixed, step)
