"""Rotary positions: how fast each pair of dimensions turns, and how a longer context slows them down.

A `Rope` is data that a config holds; `frequencies()` is what the forward pass turns by.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from glassloop.ops.quant import Float32


class Linear(NamedTuple):
    """Every frequency divided alike: positions are squeezed together."""

    factor: float

    def apply(self, plain: Float32, rope: Rope) -> Float32:
        return plain / np.float32(self.factor)


class Llama3(NamedTuple):
    """Slow turns are divided, fast ones kept, with a smooth passage between the two wavelengths."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int

    def apply(self, plain: Float32, rope: Rope) -> Float32:
        turns = self.original_context * plain / (2 * math.pi)  # whole turns within the original context
        smooth = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = np.clip(smooth, 0, 1)
        return np.asarray(plain * kept + plain / self.factor * (1 - kept), np.float32)


class Yarn(NamedTuple):
    """As Llama3, but blended along the dimensions, and attention grows a little sharper with the factor."""

    factor: float
    original_context: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def apply(self, plain: Float32, rope: Rope) -> Float32:
        low, high = self._dim_of(self.beta_fast, rope), self._dim_of(self.beta_slow, rope)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rope.dim - 1)
        ramp = np.clip((np.arange(len(plain)) - low) / (high - low if high != low else 0.001), 0, 1)
        return np.asarray(plain * (1 - ramp) + plain / self.factor * ramp, np.float32)

    def _dim_of(self, turns: float, rope: Rope) -> float:
        """The (fractional) dimension that makes so many turns within the original context."""
        return rope.dim * math.log(self.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.base))

    @property
    def sharpness(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


class Divided(NamedTuple):
    """A divisor for each frequency, as a file lists them (GGUF's `rope_freqs`)."""

    divisors: tuple[float, ...]

    def apply(self, plain: Float32, rope: Rope) -> Float32:
        return np.asarray(plain / np.array(self.divisors, np.float32), np.float32)


Scaling = Linear | Llama3 | Yarn | Divided


class Rope(NamedTuple):
    base: float
    dim: int  # how many dimensions of each head turn; the rest pass through
    scaling: Scaling | None = None

    def frequencies(self) -> Float32:
        """Radians a position for each pair. [dim / 2]"""
        exponents = np.arange(0, self.dim, 2).astype(np.float32) / np.float32(self.dim)
        plain = np.asarray(1.0 / np.power(np.float32(self.base), exponents), np.float32)
        return plain if self.scaling is None else self.scaling.apply(plain, self)

    @property
    def sharpness(self) -> float:
        """Cosines and sines are multiplied by this."""
        return self.scaling.sharpness if isinstance(self.scaling, Yarn) else 1.0
