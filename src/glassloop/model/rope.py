"""Rotary positions: how fast each pair of dimensions turns, and how a longer context slows them down.

A `Rope` is data in a config; the forward pass turns queries and keys by its `frequencies()`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from glassloop.ops.exact import log_of, power
from glassloop.ops.protocol import QueryGrowth
from glassloop.ops.quant import Float32


class LinearScaling(NamedTuple):
    """Divides every frequency by one factor, so that positions move closer together."""

    factor: float

    def apply(self, plain: Float32, rope: Rope) -> Float32:
        return plain / np.float32(self.factor)


class Llama3Scaling(NamedTuple):
    """Divides low frequencies, keeps high ones, and blends the two between the given wavelengths."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int

    def apply(self, plain: Float32, rope: Rope) -> Float32:
        turns = self.original_context * plain / (2 * math.pi)  # whole turns within the original context
        smooth = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = np.clip(smooth, 0, 1)
        return np.asarray(plain * kept + plain / self.factor * (1 - kept), np.float32)


class YarnScaling(NamedTuple):
    """Divides low frequencies, blends along the dimensions, and makes attention sharper with the factor."""

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
        """Returns the (fractional) dimension that makes this many turns within the original context."""
        return rope.dim * log_of(self.original_context / (turns * 2 * math.pi)) / (2 * log_of(rope.base))

    @property
    def sharpness(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * log_of(self.factor) + 1.0 if self.factor > 1 else 1.0


class ListedScaling(NamedTuple):
    """Divides each frequency by a number of its own, as a file lists them (GGUF's `rope_freqs`)."""

    divisors: tuple[float, ...]

    def apply(self, plain: Float32, rope: Rope) -> Float32:
        return np.asarray(plain / np.array(self.divisors, np.float32), np.float32)


class LongScaling(NamedTuple):
    """Divides each frequency by a number of its own and sharpens attention, for a context that is longer than
    the original one (longrope)."""

    divisors: tuple[float, ...]
    sharpness: float

    def apply(self, plain: Float32, rope: Rope) -> Float32:
        return ListedScaling(self.divisors).apply(plain, rope)


def long_scaling(
    long: tuple[float, ...],
    short: tuple[float, ...],
    context: int,
    original: int,
    factor: float,
    sharpness: float | None,
) -> LongScaling:
    """Returns the scaling of a model that is used with this context. It does not depend on the length of a
    text, so the keys of its tokens never change."""
    if sharpness is None:
        sharpness = math.sqrt(1 + log_of(factor) / log_of(original)) if factor > 1 and original > 1 else 1.0
    return LongScaling(long if context > original else short, sharpness)


class PartScaling(NamedTuple):
    """Turns only the first so many pairs of dimensions, as fast as if all of them turned; the others stay."""

    pairs: int

    def apply(self, plain: Float32, rope: Rope) -> Float32:
        return np.where(np.arange(len(plain)) < self.pairs, plain, np.float32(0))


Scaling = LinearScaling | Llama3Scaling | YarnScaling | ListedScaling | LongScaling | PartScaling


class Rope(NamedTuple):
    base: float
    dim: int  # how many dimensions of each head turn; the rest pass through
    scaling: Scaling | None = None
    growth: QueryGrowth | None = None

    def frequencies(self) -> Float32:
        """Returns the radians per position of each pair of dimensions. [dim / 2]"""
        exponents = np.arange(0, self.dim, 2).astype(np.float32) / np.float32(self.dim)
        powers = power(float(np.float32(self.base)), exponents.astype(np.float64))
        plain = np.asarray(np.float32(1) / powers.astype(np.float32), np.float32)
        return plain if self.scaling is None else self.scaling.apply(plain, self)

    @property
    def sharpness(self) -> float:
        """The factor of all cosines and sines."""
        return self.scaling.sharpness if isinstance(self.scaling, YarnScaling | LongScaling) else 1.0
