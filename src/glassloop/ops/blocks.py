"""Readers of the number formats of files: each takes the bytes of some blocks apart into codes, scales and
minimums, or converts floats. `quant.py` has the table that says which format each one reads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from glassloop.ops.grids import grid

Bytes = NDArray[np.uint8]
Float32 = NDArray[np.float32]


def _both(*sizes: int) -> tuple[int, ...]:
    """Returns sizes, and the same with a minus sign."""
    return (*sizes, *(-size for size in sizes))


# The values of codes, for formats whose codes are places in a table.
IQ1_VALUES = (-7, 1, 9, -9, -1, 7)  # eighths: -1, 0, 1 with 1/8 more or less
IQ2_VALUES = _both(8, 25, 43, 0)
IQ3_XXS_VALUES = _both(4, 12, 20, 28, 36, 44, 52, 62)
IQ3_S_VALUES = _both(1, 3, 5, 7, 9, 11, 13, 15)
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1_DOUBLED = _both(0, 1, 2, 3, 4, 6, 8, 12)  # of MXFP4 and NVFP4
TERNARY_VALUES = (-1, 0, 1, 2)


class Blocks(NamedTuple):
    """The parts of quantized values. A group is the sequence of values that share one scale.

    Without a unit, scales and minimums are numbers as they are. With one, they are whole numbers of units,
    and a minimum is subtracted: `unit * scale * code - minimum_unit * minimum`."""

    codes: NDArray[np.int8] | NDArray[np.uint8]  # [blocks, groups, values in a group], or places in a table
    scale: Float32 | NDArray[np.int8]  # [blocks, groups]
    minimum: Float32 | NDArray[np.int8] | None = None  # [blocks, groups]
    unit: Float32 | None = None  # [blocks, 1]
    minimum_unit: Float32 | None = None  # [blocks, 1]


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


def from_f32(raw: Bytes) -> Float32:
    return raw.view("<f4").astype(np.float32, copy=False)


def from_f16(raw: Bytes) -> Float32:
    return raw.view("<f2").astype(np.float32)


def from_bf16(raw: Bytes) -> Float32:
    return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)


def q8_0(raw: Bytes) -> Blocks:
    return Blocks(np.ascontiguousarray(raw[:, 2:]).view(np.int8)[:, None], _half(raw[:, :2]), None)


def q4_0(raw: Bytes) -> Blocks:
    return Blocks(_signed(_nibbles(raw[:, 2:]), 8)[:, None], _half(raw[:, :2]), None)


def q4_1(raw: Bytes) -> Blocks:
    return Blocks(_nibbles(raw[:, 4:])[:, None], _half(raw[:, :2]), _half(raw[:, 2:4]))


def q5_0(raw: Bytes) -> Blocks:
    codes = _nibbles(raw[:, 6:]) | (_bits(raw[:, 2:6]) << 4)
    return Blocks(_signed(codes, 16)[:, None], _half(raw[:, :2]), None)


def q5_1(raw: Bytes) -> Blocks:
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


def q4_k(raw: Bytes) -> Blocks:
    return Blocks(_k_nibbles(raw[:, 16:144]), *_k_parts(raw))


def q5_k(raw: Bytes) -> Blocks:
    # Bit g of high byte j is the fifth bit of value j in group g.
    high = _bits(raw[:, 16:48]).reshape(-1, 32, 8).transpose(0, 2, 1)
    return Blocks(_k_nibbles(raw[:, 48:176]) | (high << 4), *_k_parts(raw))


def q6_k(raw: Bytes) -> Blocks:
    low = raw[:, 0:128].reshape(-1, 2, 64)
    low = np.concatenate([low & 15, low >> 4], axis=-1)  # [blocks, 2, 128]
    high = raw[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    codes = low | (high.reshape(-1, 2, 128) << 4)
    scale = _half(raw[:, 208:210]) * np.ascontiguousarray(raw[:, 192:208]).view(np.int8).astype(np.float32)
    return Blocks(_signed(codes, 32).reshape(-1, 16, 16), scale, None)


# ── formats whose codes are places in a table of values (`Format.table`) ───────────────────────────────────


def _shifted(packed: Bytes, *shifts: int) -> Bytes:
    """Returns each run of the last axis once for each shift, shifted right by it: [..., shifts, n]."""
    return packed[..., None, :] >> np.array(shifts, np.uint8)[:, None]


def _quarters(packed: Bytes) -> Bytes:
    """Returns the four codes of two bits of each byte: [blocks, 2, 4, 32]. Each 32 bytes hold 128 values."""
    return _shifted(packed.reshape(-1, 2, 32), 0, 2, 4, 6) & np.uint8(3)


def q2_k(raw: Bytes) -> Blocks:
    codes = _quarters(raw[:, 16:80])
    steps = raw[:, :16].view(np.uint8)
    return Blocks(
        codes.reshape(-1, 16, 16),
        (steps & 15).view(np.int8),
        (steps >> 4).view(np.int8),
        _half(raw[:, 80:82]),
        _half(raw[:, 82:84]),
    )


def q3_k(raw: Bytes) -> Blocks:
    low = _quarters(raw[:, 32:96]).reshape(-1, 8, 32)
    high = _shifted(raw[:, :32], *range(8)) & 1
    # Six bits of each scale: four in the halves of eight bytes, two in the quarters of four bytes.
    steps = (_shifted(raw[:, 96:104], 0, 4) & 15).reshape(-1, 16)
    steps |= (_shifted(raw[:, 104:108], 0, 2, 4, 6) & 3).reshape(-1, 16) << 4
    codes = (low | (high << 2)).reshape(-1, 16, 16)
    return Blocks(codes, _signed(steps, 32), unit=_half(raw[:, 108:110]))


def iq4_nl(raw: Bytes) -> Blocks:
    return Blocks(_nibbles(raw[:, 2:])[:, None], _half(raw[:, :2]))


def iq4_xs(raw: Bytes) -> Blocks:
    high = (_words(raw[:, 2:4]) >> np.arange(0, 16, 2, dtype=np.uint16)).astype(np.uint8) & 3
    low = np.stack([raw[:, 4:8] & 15, raw[:, 4:8] >> 4], axis=-1).reshape(-1, 8)
    codes = _nibbles(raw[:, 8:].reshape(-1, 8, 16))
    return Blocks(codes, _signed(low | (high << 4), 32), unit=_half(raw[:, :2]))


def mxfp4(raw: Bytes) -> Blocks:
    """The scale is a power of two, half of what its byte says: the values of the table are doubled."""
    exponent = raw[:, :1].astype(np.uint32)
    bits = np.where(exponent < 2, np.uint32(0x200000) << exponent, (exponent - np.uint32(1)) << 23)
    return Blocks(_nibbles(raw[:, 1:])[:, None], bits.astype(np.uint32).view(np.float32))


def nvfp4(raw: Bytes) -> Blocks:
    """Each scale is an unsigned float of eight bits (four of them the exponent), halved as in MXFP4."""
    exponent, mantissa = (raw[:, :4] >> 3 & 15).astype(np.int32), (raw[:, :4] & 7).astype(np.float32)
    scale = np.ldexp(mantissa + np.where(exponent > 0, 8, 0), np.maximum(exponent, 1) - 11)
    scale[raw[:, :4] == 0x7F] = 0
    return Blocks(_nibbles(raw[:, 4:].reshape(-1, 4, 8)), scale.astype(np.float32))


def q1_0(raw: Bytes) -> Blocks:
    return Blocks(_bits(raw[:, 2:]).reshape(-1, 1, 128), _half(raw[:, :2]))


def tq1_0(raw: Bytes) -> Blocks:
    """Five digits of base 3 in a byte, as a fraction: multiplied by 3, each is carried out at the top."""

    def digits(packed: Bytes, count: int) -> Bytes:
        powers = 3 ** np.arange(count, dtype=np.uint8)
        fractions = packed[:, None, :] * powers[:, None]
        return (fractions.astype(np.uint16) * np.uint16(3) >> 8).astype(np.uint8).reshape(len(packed), -1)

    codes = np.concatenate([digits(raw[:, :32], 5), digits(raw[:, 32:48], 5), digits(raw[:, 48:52], 4)], -1)
    return _ternary(codes, raw[:, 52:54])


def tq2_0(raw: Bytes) -> Blocks:
    return _ternary(_quarters(raw[:, :64]), raw[:, 64:66])


def _ternary(codes: Bytes, unit: Bytes) -> Blocks:
    return Blocks(codes.reshape(-1, 8, 32), np.ones((len(unit), 8), np.int8), unit=_half(unit))


# ── IQ formats: places in a grid of points, and signs (grids.py) ───────────────────────────────────────────


def _words(raw: Bytes) -> NDArray[np.uint16]:
    return np.ascontiguousarray(raw).view("<u2")


def _odd(steps: NDArray[Any]) -> NDArray[np.int8]:
    """Returns scales that are stored as the place in the sequence 1, 3, 5, …"""
    return (2 * steps + 1).astype(np.int8)


def _nibble_steps(raw: Bytes) -> NDArray[np.int8]:
    return _odd(np.stack([raw & 15, raw >> 4], axis=-1).reshape(len(raw), -1))


def _even_signs(seven: NDArray[Any]) -> Bytes:
    """Returns the signs of eight values, as bytes; the last is such that the number of signs is even."""
    signs: Bytes = _SIGNS[seven]
    return signs


_SIGNS = np.array([number | (number.bit_count() & 1) << 7 for number in range(128)], np.uint8)


def _points(name: str, places: NDArray[Any], signs: Bytes, group: int) -> Bytes:
    """Returns the codes of points of a grid, whose values have signs, a bit each: [blocks, groups, group]."""
    sizes = grid(name)
    sign = 4 if sizes.max() < 4 else 8  # the bit of a code that says it
    codes: Bytes = sizes[places].reshape(len(places), -1)
    codes |= _bits(signs.reshape(len(places), -1)) * np.uint8(sign)
    return codes.reshape(len(places), -1, group)


def _with_signs_and_scale(raw: Bytes) -> tuple[Bytes, NDArray[np.int8]]:
    """Splits words of 32 bits: four times seven bits of signs, and a scale of four bits."""
    words = np.ascontiguousarray(raw).view("<u4")
    signs = words[..., None] >> np.array([0, 7, 14, 21], np.uint32) & np.uint32(127)
    return _even_signs(signs), _odd(words >> 28)


def iq2_xxs(raw: Bytes) -> Blocks:
    pairs = raw[:, 2:].reshape(-1, 8, 2, 4)
    signs, steps = _with_signs_and_scale(pairs[:, :, 1].reshape(len(raw), -1))
    codes = _points("IQ2_XXS", pairs[:, :, 0].reshape(len(raw), -1), signs, 32)
    return Blocks(codes, steps, unit=_half(raw[:, :2]))


def iq2_xs(raw: Bytes) -> Blocks:
    words = _words(raw[:, 2:66])
    codes = _points("IQ2_XS", words & 511, _even_signs(words >> 9), 16)
    return Blocks(codes, _nibble_steps(raw[:, 66:74]), unit=_half(raw[:, :2]))


def iq2_s(raw: Bytes) -> Blocks:
    high = (raw[:, 66:74, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(len(raw), -1)
    places = raw[:, 2:34] | high.astype(np.uint16) << 8
    codes = _points("IQ2_S", places, raw[:, 34:66], 16)
    return Blocks(codes, _nibble_steps(raw[:, 74:82]), unit=_half(raw[:, :2]))


def iq3_xxs(raw: Bytes) -> Blocks:
    signs, steps = _with_signs_and_scale(raw[:, 66:98])
    return Blocks(_points("IQ3_XXS", raw[:, 2:66], signs, 32), steps, unit=_half(raw[:, :2]))


def iq3_s(raw: Bytes) -> Blocks:
    places = raw[:, 2:66] | _bits(raw[:, 66:74]).astype(np.uint16) << 8
    codes = _points("IQ3_S", places, raw[:, 74:106], 32)
    return Blocks(codes, _nibble_steps(raw[:, 106:110]), unit=_half(raw[:, :2]))


def _shifted_points(places: NDArray[Any], minus: NDArray[Any], group: int) -> Bytes:
    """Returns the codes of points of IQ1's grid: -1, 0 and 1, all of a point shifted by 1/8, up or down."""
    codes: Bytes = grid("IQ1")[places] + 3 * minus.astype(np.uint8)[..., None]
    return codes.reshape(len(places), -1, group)


def iq1_s(raw: Bytes) -> Blocks:
    high = _words(raw[:, 34:50])
    places = raw[:, 2:34] | ((high[..., None] >> np.array([0, 3, 6, 9], np.uint16) & 7) << 8).reshape(-1, 32)
    codes = _shifted_points(places, np.repeat(high >> 15, 4, axis=-1), 32)
    return Blocks(codes, _odd(high >> 12 & 7), unit=_half(raw[:, :2]))


def iq1_m(raw: Bytes) -> Blocks:
    high = np.stack([raw[:, 32:48] & 15, raw[:, 32:48] >> 4], axis=-1).reshape(-1, 32)
    places = raw[:, :32] | (high & 7).astype(np.uint16) << 8
    # The unit is stored in the highest bits of four words, which have four scales each below.
    words = _words(raw[:, 48:56])
    unit = np.bitwise_or.reduce((words >> 12) << np.arange(0, 16, 4, dtype=np.uint16), axis=-1, keepdims=True)
    steps = _odd(words[..., None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(-1, 16)
    codes = _shifted_points(places, high >> 3, 16)
    return Blocks(codes, steps, unit=unit.astype("<u2").view("<f2").astype(np.float32))
