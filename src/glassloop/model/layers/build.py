"""Builds the layers that a config describes from the weights of a file.

A new kind of mixer or feed-forward has a case here.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glassloop.model.config import (
    AttentionConfig,
    DenseConfig,
    ExpertsConfig,
    FeedForward,
    LayerConfig,
    Mixer,
    NormConfig,
    ShortConvConfig,
)
from glassloop.model.layers.attention import Attention
from glassloop.model.layers.dense import Dense
from glassloop.model.layers.experts import Experts
from glassloop.model.layers.parts import Linear, Norm
from glassloop.model.layers.short_conv import ShortConv
from glassloop.model.layers.sublayer import Sublayer, SublayerKind, Together
from glassloop.ops.kv_cache import Place
from glassloop.ops.protocol import Array, Matrix, Ops
from glassloop.ops.quant import F32
from glassloop.ops.routing import Expert, Router
from glassloop.ops.tensor import Tensor


class LayerBuilder:
    """Builds layers from weights, which it hands to the op set. The loader has checked that all that the
    config asks for are there."""

    def __init__(self, tensors: Mapping[str, Tensor], ops: Ops) -> None:
        self._tensors = tensors
        self._ops = ops

    def matrix(self, name: str) -> Matrix:
        return self._ops.matrix(self._tensors[name])

    def vector(self, name: str) -> Array | None:
        return self._ops.vector(self._tensors[name]) if name in self._tensors else None

    def kernel(self, name: str) -> Array:
        """Returns the weights of a convolution, [width, channels], from [channels, width] as files have
        them."""
        return self._ops.vector(self._tensors[f"{name}.weight"].transposed())

    def linear(self, name: str) -> Linear:
        return Linear(name, self.matrix(f"{name}.weight"), self.vector(f"{name}.bias"))

    def norm(self, name: str, config: NormConfig | None) -> Norm | None:
        if config is None:
            return None
        weight, bias = self._tensors[f"{name}.weight"], self.vector(f"{name}.bias")
        if config.kind == "layer" and bias is None:
            bias = self._ops.vector(Tensor.of(f"{name}.bias", np.zeros(weight.shape, np.float32)))
        return Norm(config, self._ops.vector(weight), bias)

    def layer(self, at: str, config: LayerConfig, place: Place) -> tuple[Sublayer, ...]:
        """Returns the mixer and the feed-forward of a layer, each with its norms, or both together."""
        mixer = self._mixer(at, config.mixer, place)
        feed_forward = self._feed_forward(at, config.feed_forward)
        if config.parallel:
            return (self._sublayer(f"{at}attn", config, Together(mixer, feed_forward)),)
        first = self._sublayer(f"{at}attn", config, mixer)
        second = self._sublayer(f"{at}ffn", config, feed_forward)
        if config.stream_scale:
            scale = float(self._tensors[f"{at}stream_scale.weight"].float32()[0])
            second = second._replace(stream_scale=scale)
        return first, second

    def _mixer(self, at: str, config: Mixer, place: Place) -> Attention | ShortConv:
        match config:
            case AttentionConfig():
                q, o = self.linear(f"{at}q"), self.linear(f"{at}o")
                k = self.linear(f"{at}k") if config.kv_from is None else None
                v = self.linear(f"{at}v") if k is not None and not config.value_is_key else None
                attention = Attention(config, place, q, k, v, o, *self._head_norms(at, config))
                if config.output_gate:
                    attention = attention._replace(gate=self.linear(f"{at}out_gate"))
                return self._with_sinks(f"{at}sinks.weight", attention) if config.sinks else attention
            case ShortConvConfig():
                before, after, into, out = (
                    self.linear(f"{at}conv_{name}") for name in ("before", "after", "in", "out")
                )
                kernel, bias = self.kernel(f"{at}conv"), self.vector(f"{at}conv.bias")
                return ShortConv(config, place, before, after, into, kernel, bias, out)

    def _head_norms(self, at: str, config: AttentionConfig) -> tuple[Norm | None, Norm | None, Norm | None]:
        """Returns the norms of queries, keys and values."""
        norm, k_norm, v_norm = config.qk_norm, None, None
        if config.kv_from is None:
            k_norm = self.norm(f"{at}k_norm", norm)
        if config.kv_from is None and norm is not None and config.v_norm:
            ones = np.ones(config.head_dim, np.float32)
            v_norm = Norm(norm, self._ops.vector(Tensor.of(f"{at}v_norm.ones", ones)), None)
        return self.norm(f"{at}q_norm", norm), k_norm, v_norm

    def _with_sinks(self, name: str, attention: Attention) -> Attention:
        return attention._replace(sinks=self.vector(name), sink_scores=self._tensors[name].float32())

    def _feed_forward(self, at: str, config: FeedForward) -> Dense | Experts:
        match config:
            case DenseConfig():
                return self._dense(at, config)
            case ExpertsConfig():
                return self._experts(at, config)

    def _dense(self, at: str, config: DenseConfig) -> Dense:
        gate = self.linear(f"{at}gate") if config.gated else None
        return Dense(config, gate, self.linear(f"{at}up"), self.linear(f"{at}down"))

    def _experts(self, at: str, config: ExpertsConfig) -> Experts:
        experts = [self._expert(f"{at}experts.{number}.") for number in range(config.routing.experts)]
        gated, shared = None, None
        if config.shared_gate:
            gated = Router(self._floats(f"{at}shared_gate.weight")), self._expert(f"{at}shared.")
        elif config.shared is not None:
            shared = self._dense(f"{at}shared.", config.shared)
        biases = (self.vector(f"{at}{name}.bias") for name in ("router", "choice"))
        router = Router(self._floats(f"{at}router.weight"), *biases)
        return Experts(config, router, experts, shared, gated)

    def _expert(self, at: str) -> Expert:
        names = ("gate", "up", "down")
        biases = (self.vector(f"{at}{name}.bias") for name in names)
        return Expert(*(self.matrix(f"{at}{name}.weight") for name in names), *biases)

    def _floats(self, name: str) -> Matrix:
        """Returns a matrix of floats, as the products of a router are exact in: its choices are not
        continuous."""
        tensor = self._tensors[name]
        return self._ops.matrix(tensor.stored_as(F32) if tensor.format.take_apart else tensor)

    def _sublayer(self, at: str, config: LayerConfig, kind: SublayerKind) -> Sublayer:
        place, scale = config.norm_place, config.residual_scale
        norm = None if place == "output" else self.norm(f"{at}_norm", config.norm)
        if place == "post":
            return Sublayer(kind, None, None, norm, scale)
        has_output_norm = place in ("output", "sandwich")
        output_norm = self.norm(f"{at}_post_norm", config.norm) if has_output_norm else None
        return Sublayer(kind, norm, output_norm, None, scale)
