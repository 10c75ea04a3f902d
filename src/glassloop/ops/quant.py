"""Stored number formats: the table of all of them, and how to read their values and to write some.

Every quantized format consists of the same parts: small codes, a scale for each group of codes, in some
formats a minimum for each group, so that `value = scale * code + minimum`, and in some a table of at most 16
values, of which the code is the place. Everything about a format is in its row of `FORMATS`: the loaders find
it by GGUF's number, the reference op set computes the values, and the native one packs codes and scales for
its kernels as the row says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from glassloop.ops import blocks as read
from glassloop.ops.blocks import Blocks, Bytes, Float32

__all__ = [
    "BF16",
    "F16",
    "F32",
    "FORMATS",
    "FORMAT_BY_GGUF_ID",
    "INT4",
    "Blocks",
    "Bytes",
    "Float32",
    "Format",
    "dequantize",
    "factors",
    "quantize",
]

# Blocks converted at a time, so that the intermediate arrays stay in the processor's cache.
_BLOCKS_AT_ONCE = 1 << 13

# How the native op set stores scales and minimums, exactly: as floats, or as whole numbers of a float16 for
# each 256 values, in a byte (with codes of two bits, a minimum shares the byte of its scale: four bits each).
# With zeros, the minimum is the code that stands for 0, in a byte.
Scale = Literal["f16", "bf16", "steps", "zeros"]


class Format(NamedTuple):
    """One stored number format. `take_apart` is None for plain floats, whose block is a single value."""

    name: str
    gguf_id: int
    block_values: int
    block_bytes: int
    take_apart: Callable[[Bytes], Blocks] | None = None
    group: int = 32  # values that share a scale; of longer groups, the scale is repeated for each 32
    bits: int = 4  # of a code
    scale: Scale = "f16"
    minimum: bool = False
    table: tuple[int, ...] = ()  # the values of codes; without it, a code is its own value
    factor: float = 1.0  # of all scales: a power of two
    widen: Callable[[Bytes], Float32] | None = None

    def size_of(self, values: int) -> int:
        return values // self.block_values * self.block_bytes


def _from_f32(raw: Bytes) -> Float32:
    return raw.view("<f4").astype(np.float32, copy=False)


def _from_f16(raw: Bytes) -> Float32:
    return raw.view("<f2").astype(np.float32)


def _from_bf16(raw: Bytes) -> Float32:
    return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _both(*sizes: int) -> tuple[int, ...]:
    """Returns sizes, and the same with a minus sign."""
    return (*sizes, *(-size for size in sizes))


_IQ1 = (-7, 1, 9, -9, -1, 7)  # eighths: -1, 0, 1 with 1/8 more or less
_IQ2 = _both(8, 25, 43, 0)
_IQ3_XXS = _both(4, 12, 20, 28, 36, 44, 52, 62)
_IQ3_S = _both(1, 3, 5, 7, 9, 11, 13, 15)
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FP4 = _both(0, 1, 2, 3, 4, 6, 8, 12)  # doubled
_TERNARY = (-1, 0, 1, 2)

F32 = Format("F32", 0, 1, 4, bits=32, widen=_from_f32)
F16 = Format("F16", 1, 1, 2, bits=16, widen=_from_f16)
BF16 = Format("BF16", 30, 1, 2, bits=16, widen=_from_bf16)
FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        F32,
        F16,
        BF16,
        Format("Q4_0", 2, 32, 18, read.q4_0),
        Format("Q4_1", 3, 32, 20, read.q4_1, minimum=True),
        Format("Q5_0", 6, 32, 22, read.q5_0, bits=8),
        Format("Q5_1", 7, 32, 24, read.q5_1, bits=8, minimum=True),
        Format("Q8_0", 8, 32, 34, read.q8_0, bits=8),
        Format("Q2_K", 10, 256, 84, read.q2_k, 16, 2, "steps", minimum=True, table=(0, 1, 2, 3)),
        Format("Q3_K", 11, 256, 110, read.q3_k, 16, 4, "steps", table=(-4, -3, -2, -1, 0, 1, 2, 3)),
        Format("Q4_K", 12, 256, 144, read.q4_k, 32, 4, "steps", minimum=True),
        Format("Q5_K", 13, 256, 176, read.q5_k, 32, 8, "steps", minimum=True),
        Format("Q6_K", 14, 256, 210, read.q6_k, 16, 8, "steps"),
        Format("IQ2_XXS", 16, 256, 66, read.iq2_xxs, 32, 4, "steps", table=_IQ2, factor=1 / 8),
        Format("IQ2_XS", 17, 256, 74, read.iq2_xs, 16, 4, "steps", table=_IQ2, factor=1 / 8),
        Format("IQ3_XXS", 18, 256, 98, read.iq3_xxs, 32, 4, "steps", table=_IQ3_XXS, factor=1 / 4),
        Format("IQ1_S", 19, 256, 50, read.iq1_s, 32, 4, "steps", table=_IQ1, factor=1 / 8),
        Format("IQ4_NL", 20, 32, 18, read.iq4_nl, table=_IQ4),
        Format("IQ3_S", 21, 256, 110, read.iq3_s, 32, 4, "steps", table=_IQ3_S),
        Format("IQ2_S", 22, 256, 82, read.iq2_s, 16, 4, "steps", table=_IQ2, factor=1 / 8),
        Format("IQ4_XS", 23, 256, 136, read.iq4_xs, 32, 4, "steps", table=_IQ4),
        Format("IQ1_M", 29, 256, 56, read.iq1_m, 16, 4, "steps", table=_IQ1, factor=1 / 8),
        Format("TQ1_0", 34, 256, 54, read.tq1_0, 32, 2, "steps", table=_TERNARY),
        Format("TQ2_0", 35, 256, 66, read.tq2_0, 32, 2, "steps", table=_TERNARY),
        Format("MXFP4", 39, 32, 17, read.mxfp4, 32, 4, "bf16", table=_FP4),
        Format("NVFP4", 40, 64, 36, read.nvfp4, 16, table=_FP4),
        Format("Q1_0", 41, 128, 18, read.q1_0, table=(-1, 1)),
        Format("Q2_0", 42, 64, 18, read.q2_0, table=_TERNARY),
    )
}
# In no GGUF file: AWQ, GPTQ and compressed-tensors become it, whose groups have a scale and a zero.
INT4 = Format("INT4", -1, 32, 19, read.int4, scale="zeros", minimum=True)
FORMAT_BY_GGUF_ID = {format.gguf_id: format for format in FORMATS.values()}


def _quantize_q8_0(blocks: Float32) -> Bytes:
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    codes = _divide(blocks, scale)
    rounded = np.trunc(codes + np.copysign(np.float32(0.5), codes)).astype(np.int8)
    return np.concatenate([scale.astype("<f2").view(np.uint8), rounded.view(np.uint8)], axis=-1)


def _quantize_q4_1(blocks: Float32) -> Bytes:
    low = blocks.min(axis=-1, keepdims=True)
    scale = (blocks.max(axis=-1, keepdims=True) - low) / np.float32(15)
    codes = np.trunc(_divide(blocks - low, scale) + np.float32(0.5)).astype(np.uint8).clip(0, 15)
    packed = codes[:, :16] | (codes[:, 16:] << 4)
    return np.concatenate(
        [scale.astype("<f2").view(np.uint8), low.astype("<f2").view(np.uint8), packed], axis=-1
    )


def _divide(values: Float32, scale: Float32) -> Float32:
    """Multiplies by the inverse of the scale; 0 where the scale is 0."""
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    return values * inverse


def _to_f16(values: Float32) -> Bytes:
    with np.errstate(over="ignore"):  # too large for float16: infinity
        return values.astype("<f2").view(np.uint8)


def _to_bf16(values: Float32) -> Bytes:
    """Rounds to the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, "<f4").view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    kept = np.where(np.isnan(values), bits >> np.uint32(16) | np.uint32(64), rounded)
    return kept.astype("<u2").view(np.uint8)


_QUANTIZERS = {"Q8_0": _quantize_q8_0, "Q4_1": _quantize_q4_1}
_NARROWERS: dict[str, Callable[[Float32], Bytes]] = {
    "F32": lambda values: values.astype("<f4").view(np.uint8),
    "F16": _to_f16,
    "BF16": _to_bf16,
}


def quantize(format: Format, values: Float32) -> Bytes:
    """Returns float32 values (flat, whole blocks) in a stored format: F32, F16, BF16, Q8_0, Q4_1 or one that
    `quantizers.py` writes."""
    if format.name in _NARROWERS:
        return _NARROWERS[format.name](values)
    from glassloop.ops.quantizers import QUANTIZERS

    quantizer = _QUANTIZERS.get(format.name) or QUANTIZERS[format.name]
    blocks = values.reshape(-1, format.block_values)
    raw = np.empty((len(blocks), format.block_bytes), np.uint8)
    for start in range(0, len(blocks), _BLOCKS_AT_ONCE):
        some = slice(start, start + _BLOCKS_AT_ONCE)
        raw[some] = quantizer(blocks[some])
    return raw.reshape(-1)


def factors(format: Format, blocks: Blocks) -> tuple[Float32, Float32 | None]:
    """Returns the scales and minimums of blocks as numbers: [blocks, groups]."""
    _, scale, minimum, unit, minimum_unit = blocks
    if unit is not None:
        scale = (unit * np.float32(format.factor)) * scale.astype(np.float32)
    if minimum is not None and minimum_unit is not None:
        minimum = -(minimum_unit * minimum.astype(np.float32))
    return scale.astype(np.float32), None if minimum is None else minimum.astype(np.float32)


def dequantize(format: Format, raw: Bytes) -> Float32:
    """Returns the stored values as float32, flat, in order. `raw` is flat and holds whole blocks."""
    if format.widen is not None:
        return format.widen(raw)
    assert format.take_apart is not None
    stored = raw.reshape(-1, format.block_bytes)
    values = np.empty((len(stored), format.block_values), np.float32)
    table = np.array(format.table, np.float32)
    for start in range(0, len(stored), _BLOCKS_AT_ONCE):
        blocks = format.take_apart(stored[start : start + _BLOCKS_AT_ONCE])
        scale, minimum = factors(format, blocks)
        out = values[start : start + _BLOCKS_AT_ONCE].reshape(blocks.codes.shape)
        codes = table[blocks.codes] if format.table else blocks.codes
        np.multiply(codes, scale[..., None], out=out, dtype=np.float32)
        if minimum is not None:
            out += minimum[..., None]
    return values.reshape(-1)
