"""Attention: a mixer whose keys and values are kept in pages, one of each for every token."""

from __future__ import annotations

from typing import NamedTuple

from glassloop.model.config import AttentionConfig
from glassloop.model.layers.parts import ForwardStep, Linear, Norm
from glassloop.model.rope import Rope
from glassloop.ops.kv_cache import Place
from glassloop.ops.protocol import Array
from glassloop.ops.quant import Float32


class Attention(NamedTuple):
    """Each token looks at those before it in its branch."""

    config: AttentionConfig
    place: Place  # where its keys and values are in the pages
    q: Linear
    k: Linear | None  # None: an earlier layer has written keys and values
    v: Linear | None  # None: values are what keys are before their norm
    o: Linear
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    v_norm: Norm | None = None
    gate: Linear | None = None
    sinks: Array | None = None  # [heads]
    sink_scores: Float32 | None = None  # the same, for the lens

    def forward(self, x: Array, step: ForwardStep) -> Array:
        """[rows, dim] to [rows, dim]."""
        ops, config = step.ops, self.config
        about = self.place, config.scale, config.window, config.softcap, self.sinks
        q = self._turned(self.q.forward(x, step), config.heads, self.q_norm, config.query_rope, step)
        if self.k is None:
            mixed = ops.attend(q, config.kv_heads, step.batch, step.pages, *about)
        else:
            k = self.k.forward(x, step)
            v = ops.split_heads(k if self.v is None else self.v.forward(x, step), config.kv_heads)
            k = self._turned(k, config.kv_heads, self.k_norm, config.rope, step)
            if self.v_norm is not None:
                v = self.v_norm.forward(v, ops)
            mixed = ops.attention(q, k, v, step.batch, step.pages, *about)  # [rows, heads * head dim]
        if self.gate is not None:
            mixed = ops.gate(self.gate.forward(x, step), mixed, "sigmoid")
        return self.o.forward(mixed, step)

    def _turned(self, x: Array, heads: int, norm: Norm | None, rope: Rope | None, step: ForwardStep) -> Array:
        """Returns queries or keys, normalized and turned by their positions: [rows, heads, head dim]."""
        ops, config = step.ops, self.config
        if norm is not None and config.qk_norm_of == "rows":
            x, norm = norm.forward(x, ops), None
        x = ops.split_heads(x, heads)
        if norm is not None and not config.qk_norm_last:
            x, norm = norm.forward(x, ops), None
        if rope is not None:
            x = ops.rotate(x, step.angles[rope])
        return x if norm is None else norm.forward(x, ops)
