"""The forward pass: tokens in, logits out. There is only this one, for every family and every op set.

Read it top to bottom: embed, position, then for each layer attention and feed-forward with their norms and
residuals, and at the end the language head. What a family does differently is in its ModelConfig.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from glassloop.model.config import LayerConfig, ModelConfig
from glassloop.model.rope import Rope
from glassloop.ops.batch import Batch
from glassloop.ops.kv_cache import CacheSpec, Pages, Place
from glassloop.ops.protocol import Array, Forward, Matrix, Ops
from glassloop.ops.quant import Float32
from glassloop.ops.tensor import Tensor


class Linear(NamedTuple):
    weight: Matrix
    bias: Array | None


class Norm(NamedTuple):
    weight: Array
    bias: Array | None


class Layer(NamedTuple):
    config: LayerConfig
    attn_norm: Norm
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    q_norm: Norm | None
    k_norm: Norm | None
    attn_post_norm: Norm | None
    ffn_norm: Norm
    gate: Linear | None
    up: Linear
    down: Linear
    ffn_post_norm: Norm | None


class Transformer:
    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], ops: Ops) -> None:
        self.config = config
        self.ops = ops

        def linear(name: str) -> Linear | None:
            return Linear(matrix(f"{name}.weight"), vector(f"{name}.bias")) if has(name) else None

        def norm(name: str) -> Norm | None:
            return Norm(vector(f"{name}.weight"), vector(f"{name}.bias")) if has(name) else None

        def matrix(name: str) -> Matrix:
            return ops.matrix(weights[name])

        def has(name: str) -> bool:
            return f"{name}.weight" in weights

        def vector(name: str) -> Array | None:
            return ops.vector(weights[name]) if name in weights else None

        def layer(index: int) -> Layer:
            at = f"layers.{index}."
            linears = {name: linear(at + name) for name in ("q", "k", "v", "o", "gate", "up", "down")}
            norms = {name: norm(at + name) for name in ("attn_norm", "q_norm", "k_norm", "ffn_norm")}
            norms |= {name: norm(at + name) for name in ("attn_post_norm", "ffn_post_norm")}
            # The loader has checked that every weight the config asks for is there.
            return Layer(config=config.layers[index], **linears, **norms)  # type: ignore[arg-type]

        self.token_embedding = matrix("token_embedding.weight")
        self.position_embedding = self._position_table(weights)
        self.layers = [layer(index) for index in range(len(config.layers))]
        self.final_norm = norm("final_norm")
        self.head = self.token_embedding if config.tied else matrix("head.weight")
        ropes = {layer.rope for layer in config.layers if layer.rope is not None}
        self.frequencies: dict[Rope, Float32] = {rope: rope.frequencies() for rope in ropes}
        self.cache_specs, self.places = self._cache_groups()
        self._program = ops.program(self._forward)

    def forward(self, batch: Batch, pages: Sequence[Pages]) -> Array:
        """Logits of the wanted rows, [wanted, vocabulary]. Keys and values of all rows go to their pages."""
        return self._program(batch, pages)

    def hidden(self, batch: Batch, pages: Sequence[Pages]) -> Array:
        """What the language head would read of the wanted rows, [wanted, dim]."""
        return self._hidden_program(batch, pages)

    @cached_property
    def _hidden_program(self) -> Forward:
        """Made when it is first asked for: most models are only asked for logits."""
        return self.ops.program(self._hidden)

    @property
    def page_bytes(self) -> int:
        """The bytes of the keys and values of one page of tokens, in all layers."""
        return sum(map(self.ops.page_bytes, self.cache_specs))

    def _cache_groups(self) -> tuple[list[CacheSpec], list[Place]]:
        """Divides the layers into groups with the same window, each with a page table of its own, and returns
        their specs and the place of each layer.

        All groups have the same number of layers, so all pages have one size and come from one pool: a page
        that a window gives back can be used for any layers.
        """
        windows = [layer.window for layer in self.config.layers]
        layers = math.gcd(*Counter(windows).values())
        groups: dict[tuple[int | None, int], int] = {}
        places: list[Place] = []
        for index, window in enumerate(windows):
            number = windows[:index].count(window)
            group = groups.setdefault((window, number // layers), len(groups))
            places.append((group, number % layers))
        kv_heads, head_dim = self.config.kv_heads, self.config.head_dim
        return [CacheSpec(layers, kv_heads, head_dim, window) for window, _ in groups], places

    def _forward(self, batch: Batch, pages: Sequence[Pages]) -> Array:
        return self.say(self._hidden(batch, pages))

    def _hidden(self, batch: Batch, pages: Sequence[Pages]) -> Array:
        for x in self.stream(batch, pages):  # noqa: B007  # the last one is what counts
            pass
        return self.finish(x, batch)

    def stream(self, batch: Batch, pages: Sequence[Pages]) -> Iterator[Array]:
        """The stream of residuals: as it enters the first layer, and as it leaves each one. [rows, dim]"""
        ops, config = self.ops, self.config

        # Embedding: a vector for each token.
        x = ops.embed(self.token_embedding, batch.tokens)  # [rows, dim]
        if config.embedding_scale != 1.0:
            x = ops.scale(x, config.embedding_scale)

        # Position: added here by older models, turned into queries and keys by newer ones.
        if self.position_embedding is not None:
            x = ops.add(x, ops.embed(self.position_embedding, batch.positions))
        angles = {
            rope: ops.angles(batch.positions, frequencies, rope.sharpness)
            for rope, frequencies in self.frequencies.items()
        }

        yield x

        # Layers: each adds what it found to the stream of residuals.
        for index, layer in enumerate(self.layers):
            h = self._before(x, layer.attn_norm)
            h = self._attention(h, layer, index, batch, pages, angles)
            x = self._after(x, h, layer.attn_norm, layer.attn_post_norm)

            h = self._before(x, layer.ffn_norm)
            h = self._feed_forward(h, layer)
            x = self._after(x, h, layer.ffn_norm, layer.ffn_post_norm)
            yield x

    def finish(self, x: Array, batch: Batch) -> Array:
        """What the language head reads of the stream. [wanted, dim]"""
        x = self.ops.take(x, batch.wanted)
        return x if self.final_norm is None else self._norm(x, self.final_norm)

    def say(self, hidden: Array) -> Array:
        """Language head: a score for each entry of the vocabulary. [wanted, vocabulary]"""
        logits = self.ops.head(hidden, self.head)
        cap = self.config.logit_softcap
        return logits if cap is None else self.ops.softcap(logits, cap)

    def _attention(
        self,
        x: Array,
        layer: Layer,
        index: int,
        batch: Batch,
        pages: Sequence[Pages],
        angles: Mapping[Rope, Array],
    ) -> Array:
        """Each token looks at those before it in its branch. [rows, dim]"""
        ops, config = self.ops, self.config
        q = ops.split_heads(self._linear(x, layer.q), config.heads)  # [rows, heads, head dim]
        k = ops.split_heads(self._linear(x, layer.k), config.kv_heads)  # [rows, kv heads, head dim]
        v = ops.split_heads(self._linear(x, layer.v), config.kv_heads)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        if layer.config.rope is not None:
            turn = angles[layer.config.rope]
            q, k = ops.rotate(q, turn), ops.rotate(k, turn)
        mixed = ops.attention(
            q,
            k,
            v,
            batch,
            pages,
            self.places[index],
            config.attention_scale,
            layer.config.window,
            config.attention_softcap,
        )
        return self._linear(mixed, layer.o)

    def _feed_forward(self, x: Array, layer: Layer) -> Array:
        """Each token on its own. [rows, dim]"""
        up = self._linear(x, layer.up)  # [rows, ffn dim]
        if layer.gate is None:
            h = self.ops.activate(up, self.config.activation)
        else:
            h = self.ops.gate(self._linear(x, layer.gate), up, self.config.activation)
        return self._linear(h, layer.down)

    def _before(self, x: Array, norm: Norm) -> Array:
        """What goes into a sublayer."""
        return x if self.config.norm_place == "post" else self._norm(x, norm)

    def _after(self, x: Array, h: Array, norm: Norm, post_norm: Norm | None) -> Array:
        """The residual stream with a sublayer's output added."""
        if post_norm is not None:
            h = self._norm(h, post_norm)
        x = self.ops.add(x, h)
        return self._norm(x, norm) if self.config.norm_place == "post" else x

    def _norm(self, x: Array, norm: Norm) -> Array:
        if self.config.norm == "layer":
            return self.ops.layer_norm(x, norm.weight, norm.bias, self.config.norm_eps)
        return self.ops.rms_norm(x, norm.weight, self.config.norm_eps)

    def _linear(self, x: Array, linear: Linear) -> Array:
        return self.ops.linear(x, linear.weight, linear.bias)

    def _position_table(self, weights: Mapping[str, Tensor]) -> Matrix | None:
        config = self.config
        if config.positions == "rotary":
            return None
        if config.positions == "learned":
            table = weights["position_embedding.weight"]
        else:
            rows = config.context + config.position_offset
            table = Tensor.of("position_embedding.weight", sinusoids(rows, config.dim))
        return self.ops.matrix(table.rows(slice(config.position_offset, None)))


def sinusoids(count: int, dim: int) -> Float32:
    """Sines in the first half of the dimensions, cosines in the second, from fast to slow. [count, dim]"""
    half = dim // 2
    slowness = math.log(10_000) / max(half - 1, 1)
    turns = np.arange(count, dtype=np.float32)[:, None] * np.exp(np.arange(half) * -slowness).astype(
        np.float32
    )
    table = np.zeros((count, dim), np.float32)
    table[:, :half], table[:, half : 2 * half] = np.sin(turns), np.cos(turns)
    return table
