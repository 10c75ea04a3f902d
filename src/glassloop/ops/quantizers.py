"""Writers of weights in GGUF's formats. `quant.py` has the table that says which format each one writes.

Each function takes float32 values in blocks [blocks, values of a block] and returns their bytes [blocks,
bytes]. Q8_0 and Q4_1 are rounded directly. For the other quantized formats, several scales (and minimums) are
tried for all blocks at once, and the one whose codes come closest to the values is kept for each block. An
error counts more where a weight is large, as in llama.cpp, whose searches these follow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassloop.ops.blocks import E2M1_DOUBLED, IQ4_VALUES, Bytes, Float32

_TINY = np.float32(1e-20)
_IQ4_NL = np.array(IQ4_VALUES, np.float32)
_MXFP4 = np.array(E2M1_DOUBLED, np.float32)


def to_f32(values: Float32) -> Bytes:
    return values.astype("<f4").view(np.uint8)


def to_f16(values: Float32) -> Bytes:
    with np.errstate(over="ignore"):  # too large for float16: infinity
        return values.astype("<f2").view(np.uint8)


def to_bf16(values: Float32) -> Bytes:
    """Rounds to the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, "<f4").view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    kept = np.where(np.isnan(values), bits >> np.uint32(16) | np.uint32(64), rounded)
    return kept.astype("<u2").view(np.uint8)


def quantize_q8_0(blocks: Float32) -> Bytes:
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    codes = _times_inverse(blocks, scale)
    rounded = np.trunc(codes + np.copysign(np.float32(0.5), codes)).astype(np.int8)
    return np.concatenate([scale.astype("<f2").view(np.uint8), rounded.view(np.uint8)], axis=-1)


def quantize_q4_1(blocks: Float32) -> Bytes:
    low = blocks.min(axis=-1, keepdims=True)
    scale = (blocks.max(axis=-1, keepdims=True) - low) / np.float32(15)
    codes = np.trunc(_times_inverse(blocks - low, scale) + np.float32(0.5)).astype(np.uint8).clip(0, 15)
    return np.concatenate([_half_bytes(scale), _half_bytes(low), _nibbles(codes)], axis=-1)


def _times_inverse(values: Float32, scale: Float32) -> Float32:
    """Multiplies by the inverse of the scale; 0 where the scale is 0."""
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    return values * inverse


def _divided(numerator: Float32, denominator: Float32) -> Float32:
    """Divides; 0 where the denominator is almost 0."""
    safe = np.abs(denominator) > _TINY
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=safe)


def _half_bytes(numbers: Float32) -> Bytes:
    """Returns [blocks] or [blocks, n] numbers as float16, [blocks, 2 n] bytes."""
    return numbers.reshape(len(numbers), -1).astype("<f2").view(np.uint8)


def _rounded_half(numbers: Float32) -> Float32:
    return numbers.astype(np.float16).astype(np.float32)


def _nibbles(codes: NDArray[Any]) -> Bytes:
    """Packs [blocks, 32] codes: the first half of a block in the low halves of the bytes."""
    small: Bytes = codes.astype(np.uint8)
    packed: Bytes = small[:, :16] | (small[:, 16:] << np.uint8(4))
    return packed


def _signed_scale(groups: Float32, lowest: int, steps: range) -> Float32:
    """Returns the scale of each group [.., values] whose codes, `lowest` to -lowest - 1, come closest to
    it."""
    at_most = np.take_along_axis(groups, np.abs(groups).argmax(-1, keepdims=True), -1)[..., 0]
    weights = groups * groups
    best = np.full(groups.shape[:-1], -1.0, np.float32)
    scale = np.zeros(groups.shape[:-1], np.float32)
    for step in steps:
        inverse = _divided(np.full_like(at_most, lowest - 0.1 * step), at_most)
        codes = np.clip(np.rint(groups * inverse[..., None]), lowest, -lowest - 1)
        along = (weights * groups * codes).sum(-1)
        square = (weights * codes * codes).sum(-1)
        gain = _divided(along * along, square)  # how much of the weighted sum of squares is explained
        better = gain > best
        best, scale = np.where(better, gain, best), np.where(better, _divided(along, square), scale)
    return scale


def quantize_q4_0(blocks: Float32) -> Bytes:
    scale = _rounded_half(_signed_scale(blocks, -8, range(-9, 10)))
    codes = np.clip(np.rint(_divided(blocks, np.broadcast_to(scale[:, None], blocks.shape))), -8, 7) + 8
    return np.concatenate([_half_bytes(scale), _nibbles(codes)], axis=-1)


def _with_minimum(groups: Float32, most: int, steps: int, first: float) -> tuple[Float32, Float32]:
    """Returns scale and minimum (which is subtracted, at least 0) of each group [.., values], for codes from
    0 to `most`."""
    size = groups.shape[-1]
    mean_square = (groups * groups).sum(-1, keepdims=True) / np.float32(size)
    weights = np.sqrt(mean_square) + np.abs(groups)
    low = np.minimum(groups.min(-1), 0)
    high = groups.max(-1)
    scale, minimum = _divided(high - low, np.full_like(high, most)), -low
    codes = np.clip(np.rint(_divided(groups - low[..., None], _like(scale, groups))), 0, most)
    best = (weights * (scale[..., None] * codes - minimum[..., None] - groups) ** 2).sum(-1)
    whole, total = weights.sum(-1), (weights * groups).sum(-1)
    for step in range(steps + 1):
        inverse = _divided(np.full_like(high, first + 0.1 * step + most), high - low)
        codes = np.clip(np.rint(inverse[..., None] * (groups - low[..., None])), 0, most)
        weighted = weights * codes
        along, square, cross = weighted.sum(-1), (weighted * codes).sum(-1), (weighted * groups).sum(-1)
        determinant = whole * square - along * along
        this_scale = _divided(whole * cross - total * along, determinant)
        this_low = _divided(square * total - along * cross, determinant)
        above = this_low > 0
        this_scale = np.where(above, _divided(cross, square), this_scale)
        this_low = np.where(above, 0, this_low)
        error = (weights * (this_scale[..., None] * codes + this_low[..., None] - groups) ** 2).sum(-1)
        better = (error < best) & (determinant > 0)
        best = np.where(better, error, best)
        scale, minimum = np.where(better, this_scale, scale), np.where(better, -this_low, minimum)
    return scale, minimum


def _like(numbers: Float32, groups: Float32) -> Float32:
    return np.broadcast_to(numbers[..., None], groups.shape)


def _k_blocks(blocks: Float32, most: int, steps: int, first: float) -> tuple[Bytes, NDArray[np.uint8]]:
    """Returns the 16 bytes of scales and minimums of Q4_K and Q5_K, and the codes [blocks, 8, 32]."""
    groups = blocks.reshape(-1, 8, 32)
    scale, minimum = _with_minimum(groups, most, steps, first)
    whole_scale = _rounded_half(scale.max(-1) / np.float32(63))
    whole_minimum = _rounded_half(minimum.max(-1) / np.float32(63))
    scales = np.clip(np.rint(_divided(scale, _like(whole_scale, scale))), 0, 63)
    minimums = np.clip(np.rint(_divided(minimum, _like(whole_minimum, minimum))), 0, 63)
    used_scale, used_minimum = whole_scale[:, None] * scales, whole_minimum[:, None] * minimums
    raised = groups + used_minimum[..., None]
    codes = np.clip(np.rint(_divided(raised, _like(used_scale, groups))), 0, most).astype(np.uint8)
    six, low = scales.astype(np.uint8), minimums.astype(np.uint8)
    packed = np.concatenate(
        [
            six[:, :4] | (six[:, 4:] >> 4 << 6),
            low[:, :4] | (low[:, 4:] >> 4 << 6),
            (six[:, 4:] & 15) | (low[:, 4:] << 4),
        ],
        axis=-1,
    )
    return np.concatenate([_half_bytes(whole_scale), _half_bytes(whole_minimum), packed], axis=-1), codes


def _k_nibbles(codes: NDArray[np.uint8]) -> Bytes:
    """Packs the low four bits of [blocks, 8, 32] codes: two groups in each 32 bytes."""
    pairs = (codes & np.uint8(15)).reshape(-1, 4, 2, 32)
    return (pairs[:, :, 0] | (pairs[:, :, 1] << np.uint8(4))).reshape(-1, 128)


def quantize_q4_k(blocks: Float32) -> Bytes:
    head, codes = _k_blocks(blocks, 15, 20, -1.0)
    return np.concatenate([head, _k_nibbles(codes)], axis=-1)


def quantize_q5_k(blocks: Float32) -> Bytes:
    head, codes = _k_blocks(blocks, 31, 15, -0.5)
    high = np.packbits((codes >> 4).transpose(0, 2, 1), axis=-1, bitorder="little")[..., 0]  # [blocks, 32]
    return np.concatenate([head, high, _k_nibbles(codes)], axis=-1)


def quantize_q6_k(blocks: Float32) -> Bytes:
    groups = blocks.reshape(-1, 16, 16)
    scale = _signed_scale(groups, -32, range(-9, 10))
    largest = np.take_along_axis(scale, np.abs(scale).argmax(-1, keepdims=True), -1)[..., 0]
    whole = _rounded_half(largest / np.float32(-128))
    scales = np.clip(np.rint(_divided(scale, _like(whole, scale))), -128, 127)
    used = whole[:, None] * scales
    codes = (np.clip(np.rint(_divided(groups, _like(used, groups))), -32, 31) + 32).astype(np.uint8)
    halves = codes.reshape(-1, 2, 4, 32)  # each half of a block is four runs of 32
    low = np.stack(
        [(halves[:, :, run] & 15) | (halves[:, :, run + 2] << 4) for run in (0, 1)], axis=2
    ).reshape(-1, 128)
    tops = (halves >> 4) << np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = np.bitwise_or.reduce(tops, axis=2).reshape(-1, 64)
    return np.concatenate([low, high, scales.astype(np.int8).view(np.uint8), _half_bytes(whole)], axis=-1)


def _nearest(values: Float32, table: Float32) -> NDArray[np.intp]:
    """Returns the place of the nearest entry of a table for each value."""
    order = np.argsort(table, kind="stable")
    ranked = table[order]
    return order[np.searchsorted((ranked[1:] + ranked[:-1]) / 2, values)]


def quantize_iq4_nl(blocks: Float32) -> Bytes:
    at_most = np.take_along_axis(blocks, np.abs(blocks).argmax(-1, keepdims=True), -1)
    weights = blocks * blocks
    best = np.full(len(blocks), -1.0, np.float32)
    scale = np.zeros(len(blocks), np.float32)
    for step in range(-7, 8):
        inverse = _divided(np.full_like(at_most, _IQ4_NL[0] + step), at_most)
        values = _IQ4_NL[_nearest(blocks * inverse, _IQ4_NL)]
        along, square = (weights * blocks * values).sum(-1), (weights * values * values).sum(-1)
        gain = _divided(along * along, square)
        better = gain > best
        best, scale = np.where(better, gain, best), np.where(better, _divided(along, square), scale)
    scale = _rounded_half(scale)
    codes = _nearest(_divided(blocks, np.broadcast_to(scale[:, None], blocks.shape)), _IQ4_NL)
    return np.concatenate([_half_bytes(scale), _nibbles(codes)], axis=-1)


def quantize_mxfp4(blocks: Float32) -> Bytes:
    most = np.abs(blocks).max(-1)
    _, exponent = np.frexp(np.where(most > 0, most, 1))
    best = np.full(len(blocks), np.inf, np.float32)
    power = np.zeros(len(blocks), np.int32)
    codes = np.zeros(blocks.shape, np.uint8)
    for step in (-4, -3, -2):  # the largest value is 6 (12, doubled), just below the third power of two
        tried = np.clip(exponent + step, -126, 127)
        unit = np.ldexp(np.float32(1), tried)[:, None]
        nearest = _nearest(blocks / unit, _MXFP4)
        error = ((_MXFP4[nearest] * unit - blocks) ** 2).sum(-1)
        better = error < best
        best, power = np.where(better, error, best), np.where(better, tried, power)
        codes = np.where(better[:, None], nearest, codes).astype(np.uint8)
    # The stored exponent is that of values that are not doubled.
    stored = np.where(most > 0, power + 1 + 127, 0).astype(np.uint8)[:, None]
    return np.concatenate([stored, _nibbles(codes)], axis=-1)
