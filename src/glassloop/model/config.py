"""What a model is made of, as data: the one description that the forward pass follows.

Readers of `config.json` and of GGUF metadata fill it in (`config_hf.py`, `config_gguf.py`); the
checks stand here, once, so that a config that lies is refused before anything is allocated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

from glassloop.errors import ModelError
from glassloop.model.rope import Rope
from glassloop.ops.protocol import Activation

# Far above any model that exists, far below what would hang or exhaust a machine.
_MOST = {
    "vocab_size": 1 << 24,
    "dim": 1 << 20,
    "ffn_dim": 1 << 22,
    "heads": 1 << 14,
    "kv_heads": 1 << 14,
    "head_dim": 1 << 14,
    "context": 1 << 24,
}
MOST_LAYERS = 4096
_MOST_SINUSOIDS = 1 << 24  # numbers in a table that no file holds: 64 MiB


class LayerConfig(NamedTuple):
    """What may differ from layer to layer: how far back it sees, and whether and how positions turn it."""

    window: int | None = None
    rope: Rope | None = None


@dataclass(frozen=True)
class ModelConfig:
    family: str
    vocab_size: int
    dim: int
    ffn_dim: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    layers: tuple[LayerConfig, ...]
    attention_scale: float
    norm_eps: float
    norm: Literal["rms", "layer"] = "rms"
    # pre: norm(x) goes into a sublayer. post: norm of the sum after it. sandwich: before and on its output.
    norm_place: Literal["pre", "post", "sandwich"] = "pre"
    final_norm: bool = True
    activation: Activation = "silu"
    gated: bool = True
    positions: Literal["rotary", "learned", "sinusoidal"] = "rotary"
    position_offset: int = 0
    embedding_scale: float = 1.0
    qk_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    ffn_bias: bool = False
    tied: bool = False
    attention_softcap: float | None = None
    logit_softcap: float | None = None

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            if not 0 < getattr(self, name) <= most:
                raise ValueError(f"{name} is {getattr(self, name)}; 1 to {most} is expected")
        if not 0 < len(self.layers) <= MOST_LAYERS:
            raise ValueError(f"layers is {len(self.layers)}; 1 to {MOST_LAYERS} is expected")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads is {self.heads}, not a multiple of kv_heads {self.kv_heads}")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not 0 < value < 1e9:
                raise ValueError(f"{field.name} is {value}; a positive number is expected")
        positions = self.context + self.position_offset
        if self.positions == "sinusoidal" and positions * self.dim > _MOST_SINUSOIDS:
            most = max(_MOST_SINUSOIDS // self.dim - self.position_offset, 1)
            raise ValueError(f"context is {self.context}; 1 to {most} is expected for sinusoidal positions")
        for index, layer in enumerate(self.layers):
            if layer.window is not None and not 0 < layer.window <= _MOST["context"]:
                raise ValueError(
                    f"layer {index}: window is {layer.window}; 1 to {_MOST['context']} is expected"
                )
            rope = layer.rope
            if rope is not None and (rope.dim % 2 or not 0 < rope.dim <= self.head_dim or rope.base <= 1):
                raise ValueError(
                    f"layer {index}: rope turns {rope.dim} of {self.head_dim} dims with base {rope.base};"
                    " an even number within the head and a base above 1 are expected"
                )

    @staticmethod
    def checked(where: str, settings: Mapping[str, Any]) -> ModelConfig:
        """A config from a file: what is wrong with it is an error that names the file."""
        try:
            return ModelConfig(**settings)
        except ValueError as error:
            raise ModelError(f"{where}: {error}") from None

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight that this model has, by our name for it, with its shape."""
        shapes: dict[str, tuple[int, ...]] = {"token_embedding.weight": (self.vocab_size, self.dim)}
        if self.positions == "learned":
            shapes["position_embedding.weight"] = (self.context + self.position_offset, self.dim)
        for index in range(len(self.layers)):
            for name, shape in self._layer_shapes().items():
                shapes[f"layers.{index}.{name}"] = shape
        if self.final_norm:
            shapes |= self._norm("final_norm", self.dim)
        if not self.tied:
            shapes["head.weight"] = (self.vocab_size, self.dim)
        return shapes

    def _layer_shapes(self) -> dict[str, tuple[int, ...]]:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes = self._norm("attn_norm", self.dim)
        shapes |= self._linear("q", q, self.dim, self.qkv_bias)
        shapes |= self._linear("k", kv, self.dim, self.qkv_bias)
        shapes |= self._linear("v", kv, self.dim, self.qkv_bias)
        shapes |= self._linear("o", self.dim, q, self.out_bias)
        if self.qk_norm:
            shapes |= self._norm("q_norm", self.head_dim) | self._norm("k_norm", self.head_dim)
        shapes |= self._norm("ffn_norm", self.dim)
        if self.gated:
            shapes |= self._linear("gate", self.ffn_dim, self.dim, self.ffn_bias)
        shapes |= self._linear("up", self.ffn_dim, self.dim, self.ffn_bias)
        shapes |= self._linear("down", self.dim, self.ffn_dim, self.ffn_bias)
        if self.norm_place == "sandwich":
            shapes |= self._norm("attn_post_norm", self.dim) | self._norm("ffn_post_norm", self.dim)
        return shapes

    def _norm(self, name: str, dim: int) -> dict[str, tuple[int, ...]]:
        names = ("weight", "bias") if self.norm == "layer" else ("weight",)
        return {f"{name}.{part}": (dim,) for part in names}

    @staticmethod
    def _linear(name: str, out: int, into: int, bias: bool) -> dict[str, tuple[int, ...]]:
        return {f"{name}.weight": (out, into)} | ({f"{name}.bias": (out,)} if bias else {})
