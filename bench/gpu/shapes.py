"""Models with random weights in the shapes of well-known ones, made on the device."""

from __future__ import annotations

from typing import Any

import torch

from glassloop.model.config import AttentionConfig, DenseConfig, LayerConfig, ModelConfig, NormConfig
from glassloop.model.rope import Rope
from glassloop.model.transformer import Transformer
from glassloop.ops.torch.device import default_device
from glassloop.ops.torch.matrix import TorchMatrix
from glassloop.ops.torch.ops import TorchOps
from glassloop.ops.torch.packed import CHUNK, PackedMatrix

# layers, dim, heads, key-value heads, head dim, feed-forward, vocabulary
SHAPES = {
    "135m": (30, 576, 9, 3, 64, 1536, 49152),
    "1b": (16, 2048, 32, 8, 64, 8192, 128256),
    "8b": (32, 4096, 32, 8, 128, 14336, 128256),
    "8b-3-layers": (3, 4096, 32, 8, 128, 14336, 128256),
}


class _Shape:
    """Takes the place of a stored tensor; only its shape is used."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


WEIGHTS = ("bf16", "q8", "q4")  # of random models; the last two stay packed, as Q8_0 and Q4_1 do


class RandomOps(TorchOps):
    """The torch op set with random weights. A tensor that has values, as an adapter's, keeps them."""

    def __init__(self, weights: str = "bf16") -> None:
        super().__init__()
        self._weights = weights

    def matrix(self, tensor: Any) -> TorchMatrix:
        if not isinstance(tensor, _Shape):
            return super().matrix(tensor)
        scale = tensor.shape[1] ** -0.5
        if self._weights != "bf16" and tensor.shape[1] % CHUNK == 0:
            bits = 8 if self._weights == "q8" else 4
            return TorchMatrix.of(random_packed(*tensor.shape, scale, bits), self.device)
        values = torch.empty(tensor.shape, dtype=self.device.half, device=self.device.torch)
        return TorchMatrix.of(values.normal_(0.0, scale), self.device)

    def vector(self, tensor: Any) -> torch.Tensor:
        return torch.ones(tensor.shape, device=self.device.torch)


def random_packed(out: int, into: int, scale: float, bits: int) -> PackedMatrix:
    at = default_device().torch
    most = 1 << (bits - 1)
    codes = torch.randint(-most, most, (out, into), dtype=torch.int8, device=at)
    spread = scale / (74.0 if bits == 8 else 4.6)  # the standard deviation of the codes
    scales = torch.full((out, into // 32), spread, device=at)
    return PackedMatrix.of(codes, scales, None if bits == 8 else scales * 0.5, bits)


def random_model(name: str, context: int = 8192, seed: int = 0, weights: str = "bf16") -> Transformer:
    """Returns a model with random weights, the same for the same seed."""
    layers, dim, heads, kv_heads, head_dim, hidden, vocabulary = SHAPES[name]
    mixer = AttentionConfig(heads, kv_heads, head_dim, head_dim**-0.5, None, Rope(500000.0, head_dim))
    norm = NormConfig(1e-5)
    layer = LayerConfig(mixer, DenseConfig(hidden), norm)
    config = ModelConfig(f"random-{name}", vocabulary, dim, context, (layer,) * layers, norm)
    torch.manual_seed(seed)
    shapes = {name: _Shape(shape) for name, shape in config.shapes().items()}
    return Transformer(config, shapes, RandomOps(weights))  # type: ignore[arg-type]
