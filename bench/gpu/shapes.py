"""Models with random weights in the shapes of well-known ones, made on the device."""

from __future__ import annotations

from typing import Any

import torch

from glassloop.model.config import AttentionConfig, DenseConfig, LayerConfig, ModelConfig, NormConfig
from glassloop.model.rope import Rope
from glassloop.model.transformer import Transformer
from glassloop.ops.quant import FORMATS
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


# Of random models; all but the first stay packed, as Q8_0, Q4_1, IQ4_NL and FP8 do.
WEIGHTS = ("bf16", "q8", "q4", "iq4", "fp8")


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
            return TorchMatrix.of(random_packed(*tensor.shape, scale, self._weights), self.device)
        values = torch.empty(tensor.shape, dtype=self.device.half, device=self.device.torch)
        return TorchMatrix.of(values.normal_(0.0, scale), self.device)

    def vector(self, tensor: Any) -> torch.Tensor:
        return torch.ones(tensor.shape, device=self.device.torch)


def random_packed(out: int, into: int, scale: float, kind: str) -> PackedMatrix:
    """Returns a random packed matrix of one of the kinds of `WEIGHTS`."""
    at, bits = default_device().torch, 8 if kind in ("q8", "fp8") else 4
    most = 1 << (bits - 1)
    codes = torch.randint(-most, most, (out, into), dtype=torch.int8, device=at)
    if kind == "fp8":
        codes &= -65  # values up to 2, no NaN
        return PackedMatrix.of(
            codes, torch.full((out, into // CHUNK), 1.3 * scale, device=at), None, 8, (), True
        )
    # Divided by the standard deviation of the values of the codes.
    spread = scale / {"q8": 74.0, "q4": 4.6, "iq4": 71.0}[kind]
    scales = torch.full((out, into // 32), spread, device=at)
    if kind == "iq4":
        table = tuple(int(value) for value in FORMATS["IQ4_NL"].table)
        return PackedMatrix.of(codes + most, scales, None, 4, table)
    return PackedMatrix.of(codes, scales, None if kind == "q8" else scales * 0.5, bits)


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
