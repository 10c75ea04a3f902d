"""Stored number formats: how weight files pack values into blocks of bytes, and how to read them back.

Every quantized format consists of the same three parts: small integer codes, a scale for each group of codes,
and in some formats a minimum for each group, so that `value = scale * code + minimum`. The reference op set
computes the values; the native one keeps the codes and repacks them for its kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Float32 = NDArray[np.float32]

# Blocks converted at a time, so that the intermediate arrays stay in the processor's cache.
_BLOCKS_AT_ONCE = 1 << 13


class Blocks(NamedTuple):
    """The parts of quantized values. A group is the sequence of values that share one scale."""

    codes: NDArray[np.int8] | NDArray[np.uint8]  # [blocks, groups, values in a group]
    scale: Float32  # [blocks, groups]
    minimum: Float32 | None  # [blocks, groups]


class Format(NamedTuple):
    """One stored number format. `take_apart` is None for plain floats, whose block is a single value."""

    name: str
    gguf_id: int
    block_values: int
    block_bytes: int
    take_apart: Callable[[Bytes], Blocks] | None = None
    widen: Callable[[Bytes], Float32] | None = None

    def size_of(self, values: int) -> int:
        return values // self.block_values * self.block_bytes


def _half(raw: Bytes) -> Float32:
    """Converts the bytes of little-endian float16 values, [..., 2n], to float32 [..., n]."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """Splits [blocks, n] bytes into [blocks, 2n] codes: all low halves first, then all high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _bits(packed: Bytes) -> Bytes:
    """Splits [blocks, n] bytes into [blocks, 8n] single bits, lowest first."""
    return np.unpackbits(packed, axis=-1, bitorder="little")


def _signed(codes: NDArray[Any], zero: int) -> NDArray[np.int8]:
    return codes.astype(np.int8) - np.int8(zero)


def _q8_0(raw: Bytes) -> Blocks:
    return Blocks(np.ascontiguousarray(raw[:, 2:]).view(np.int8)[:, None], _half(raw[:, :2]), None)


def _q4_0(raw: Bytes) -> Blocks:
    return Blocks(_signed(_nibbles(raw[:, 2:]), 8)[:, None], _half(raw[:, :2]), None)


def _q4_1(raw: Bytes) -> Blocks:
    return Blocks(_nibbles(raw[:, 4:])[:, None], _half(raw[:, :2]), _half(raw[:, 2:4]))


def _q5_0(raw: Bytes) -> Blocks:
    codes = _nibbles(raw[:, 6:]) | (_bits(raw[:, 2:6]) << 4)
    return Blocks(_signed(codes, 16)[:, None], _half(raw[:, :2]), None)


def _q5_1(raw: Bytes) -> Blocks:
    codes = _nibbles(raw[:, 8:]) | (_bits(raw[:, 4:8]) << 4)
    return Blocks(codes[:, None], _half(raw[:, :2]), _half(raw[:, 2:4]))


def _k_scales(raw: Bytes) -> tuple[Bytes, Bytes]:
    """Returns the eight 6-bit scales and eight 6-bit minimums that Q4_K and Q5_K pack into twelve bytes."""
    first, second, tops = raw[:, 0:4], raw[:, 4:8], raw[:, 8:12]
    scales = np.concatenate([first & 63, (tops & 15) | (first >> 6 << 4)], axis=-1)
    minimums = np.concatenate([second & 63, (tops >> 4) | (second >> 6 << 4)], axis=-1)
    return scales, minimums


def _k_parts(raw: Bytes) -> tuple[Float32, Float32]:
    scales, minimums = _k_scales(raw[:, 4:16])
    return _half(raw[:, 0:2]) * scales.astype(np.float32), -(_half(raw[:, 2:4]) * minimums.astype(np.float32))


def _k_nibbles(packed: Bytes) -> Bytes:
    """Splits 128 bytes into eight groups of 32: each 32 bytes hold two, in their low and high halves."""
    quarters = packed.reshape(-1, 4, 32)
    return np.stack([quarters & 15, quarters >> 4], axis=2).reshape(-1, 8, 32)


def _q4_k(raw: Bytes) -> Blocks:
    return Blocks(_k_nibbles(raw[:, 16:144]), *_k_parts(raw))


def _q5_k(raw: Bytes) -> Blocks:
    # Bit g of high byte j is the fifth bit of value j in group g.
    high = _bits(raw[:, 16:48]).reshape(-1, 32, 8).transpose(0, 2, 1)
    return Blocks(_k_nibbles(raw[:, 48:176]) | (high << 4), *_k_parts(raw))


def _q6_k(raw: Bytes) -> Blocks:
    low = raw[:, 0:128].reshape(-1, 2, 64)
    low = np.concatenate([low & 15, low >> 4], axis=-1)  # [blocks, 2, 128]
    high = raw[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    codes = low | (high.reshape(-1, 2, 128) << 4)
    scale = _half(raw[:, 208:210]) * np.ascontiguousarray(raw[:, 192:208]).view(np.int8).astype(np.float32)
    return Blocks(_signed(codes, 32).reshape(-1, 16, 16), scale, None)


def _from_f32(raw: Bytes) -> Float32:
    return raw.view("<f4").astype(np.float32, copy=False)


def _from_f16(raw: Bytes) -> Float32:
    return raw.view("<f2").astype(np.float32)


def _from_bf16(raw: Bytes) -> Float32:
    return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)


F32 = Format("F32", 0, 1, 4, widen=_from_f32)
F16 = Format("F16", 1, 1, 2, widen=_from_f16)
BF16 = Format("BF16", 30, 1, 2, widen=_from_bf16)
FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        F32,
        F16,
        BF16,
        Format("Q4_0", 2, 32, 18, _q4_0),
        Format("Q4_1", 3, 32, 20, _q4_1),
        Format("Q5_0", 6, 32, 22, _q5_0),
        Format("Q5_1", 7, 32, 24, _q5_1),
        Format("Q8_0", 8, 32, 34, _q8_0),
        Format("Q4_K", 12, 256, 144, _q4_k),
        Format("Q5_K", 13, 256, 176, _q5_k),
        Format("Q6_K", 14, 256, 210, _q6_k),
    )
}
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
    """Returns float32 values (flat, whole blocks) in a stored format: F32, F16, BF16, Q8_0 or Q4_1."""
    if format.name in _NARROWERS:
        return _NARROWERS[format.name](values)
    blocks = values.reshape(-1, format.block_values)
    raw = np.empty((len(blocks), format.block_bytes), np.uint8)
    for start in range(0, len(blocks), _BLOCKS_AT_ONCE):
        some = slice(start, start + _BLOCKS_AT_ONCE)
        raw[some] = _QUANTIZERS[format.name](blocks[some])
    return raw.reshape(-1)


def dequantize(format: Format, raw: Bytes) -> Float32:
    """Returns the stored values as float32, flat, in order. `raw` is flat and holds whole blocks."""
    if format.widen is not None:
        return format.widen(raw)
    assert format.take_apart is not None
    blocks = raw.reshape(-1, format.block_bytes)
    values = np.empty((len(blocks), format.block_values), np.float32)
    for start in range(0, len(blocks), _BLOCKS_AT_ONCE):
        codes, scale, minimum = format.take_apart(blocks[start : start + _BLOCKS_AT_ONCE])
        out = values[start : start + _BLOCKS_AT_ONCE].reshape(codes.shape)
        np.multiply(codes, scale[..., None], out=out, dtype=np.float32)
        if minimum is not None:
            out += minimum[..., None]
    return values.reshape(-1)
