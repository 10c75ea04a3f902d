"""Builds the layers that a config describes from the weights of a file.

A new kind of mixer or feed-forward has a case here.
"""

from __future__ import annotations

from collections.abc import Mapping

from glassloop.model.config import (
    AttentionConfig,
    DenseConfig,
    FeedForward,
    LayerConfig,
    Mixer,
    NormConfig,
)
from glassloop.model.layers.attention import Attention
from glassloop.model.layers.dense import Dense
from glassloop.model.layers.parts import Linear, Norm
from glassloop.model.layers.sublayer import Sublayer
from glassloop.ops.kv_cache import Place
from glassloop.ops.protocol import Array, Matrix, Ops
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
                return Attention(config, place, q, k, v, o, q_norm, k_norm)

    def _feed_forward(self, at: str, config: FeedForward) -> Dense:
        match config:
            case DenseConfig():
                gate = self.linear(f"{at}gate") if config.gated else None
                return Dense(config, gate, self.linear(f"{at}up"), self.linear(f"{at}down"))

    def _sublayer(self, at: str, config: LayerConfig, kind: Attention | Dense) -> Sublayer:
        norm = self.norm(f"{at}_norm", config.norm)
        if config.norm_place == "post":
            return Sublayer(kind, None, None, norm)
        sandwich = config.norm_place == "sandwich"
        return Sublayer(kind, norm, self.norm(f"{at}_post_norm", config.norm) if sandwich else None, None)
