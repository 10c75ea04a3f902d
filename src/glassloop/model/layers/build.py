"""Builds the layers that a config describes from the weights of a file.

A new kind of mixer or feed-forward has a case here.
"""

from __future__ import annotations

from collections.abc import Mapping

from glassloop.model.config import (
    AttentionConfig,
    DenseConfig,
    ExpertsConfig,
    FeedForward,
    LayerConfig,
    Mixer,
    NormConfig,
)
from glassloop.model.layers.attention import Attention
from glassloop.model.layers.dense import Dense
from glassloop.model.layers.experts import Experts
from glassloop.model.layers.parts import Linear, Norm
from glassloop.model.layers.sublayer import Sublayer
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

    def linear(self, name: str) -> Linear:
        return Linear(name, self.matrix(f"{name}.weight"), self.vector(f"{name}.bias"))

    def norm(self, name: str, config: NormConfig | None) -> Norm | None:
        if config is None:
            return None
        return Norm(config, self.vector(f"{name}.weight"), self.vector(f"{name}.bias"))

    def layer(self, at: str, config: LayerConfig, place: Place) -> tuple[Sublayer, Sublayer]:
        """Returns the mixer and the feed-forward of a layer, each with its norms."""
        mixer = self._mixer(at, config.mixer, place)
        feed_forward = self._feed_forward(at, config.feed_forward)
        return self._sublayer(f"{at}attn", config, mixer), self._sublayer(f"{at}ffn", config, feed_forward)

    def _mixer(self, at: str, config: Mixer, place: Place) -> Attention:
        match config:
            case AttentionConfig():
                q, k, v, o = (self.linear(at + name) for name in "qkvo")
                q_norm, k_norm = (self.norm(f"{at}{name}_norm", config.qk_norm) for name in "qk")
                gate = self.linear(f"{at}out_gate") if config.output_gate else None
                attention = Attention(config, place, q, k, v, o, q_norm, k_norm, gate)
                return self._with_sinks(f"{at}sinks.weight", attention) if config.sinks else attention

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

    def _sublayer(self, at: str, config: LayerConfig, kind: Attention | Dense | Experts) -> Sublayer:
        norm = self.norm(f"{at}_norm", config.norm)
        if config.norm_place == "post":
            return Sublayer(kind, None, None, norm)
        sandwich = config.norm_place == "sandwich"
        return Sublayer(kind, norm, self.norm(f"{at}_post_norm", config.norm) if sandwich else None, None)
