"""The simplest key-value cache: for each branch, one growing array a layer.

The forward pass only knows the `KVCache` protocol (`ops/batch.py`); the engine puts its tree of pages there.
"""

from __future__ import annotations

import numpy as np

from glassloop.model.config import ModelConfig
from glassloop.ops.batch import Batch, Span
from glassloop.ops.quant import Float32


class GrowingCache:
    def __init__(self, config: ModelConfig) -> None:
        self._shape = (2, len(config.layers), config.kv_heads, config.head_dim)
        self._branches: dict[int, Float32] = {}  # [keys and values, layers, capacity, kv heads, head dim]

    def write(self, layer: int, batch: Batch, keys: Float32, values: Float32) -> None:
        for span in batch.spans:
            held = self._room(span)
            held[0, layer, span.first : span.length] = keys[span.start : span.stop]
            held[1, layer, span.first : span.length] = values[span.start : span.stop]

    def read(self, layer: int, span: Span) -> tuple[Float32, Float32]:
        held = self._branches[span.branch]
        return held[0, layer, : span.length], held[1, layer, : span.length]

    def drop(self, branch: int) -> None:
        self._branches.pop(branch, None)

    def _room(self, span: Span) -> Float32:
        """The branch's array, grown by doubling so that a token costs constant time on average."""
        held = self._branches.get(span.branch)
        capacity = 0 if held is None else held.shape[2]
        if held is None or capacity < span.length:
            both, layers, kv_heads, head_dim = self._shape
            grown = np.empty(
                (both, layers, max(2 * capacity, span.length, 64), kv_heads, head_dim), np.float32
            )
            if held is not None:
                grown[:, :, :capacity] = held
            self._branches[span.branch] = held = grown
        return held
