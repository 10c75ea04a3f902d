"""Weights as small integers with a scale, and perhaps a minimum, for each group of a row: `scale * code +
minimum`. AWQ, GPTQ, MLX and integers of compressed-tensors are all of this kind, so each of their readers
ends here.

A matrix becomes one of the packed formats of `ops/quant.py` where that holds every value exactly, so that it
stays small and the integer kernels read it. Where none does, it becomes floats of the type of its scales,
each value rounded once, as the libraries that wrote the files do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from glassloop.ops.quant import FORMATS, INT4, Bytes, Float32, Format, quantize
from glassloop.ops.tensor import Computed, Tensor

_BLOCK = 32  # values of a block of every packed format that is written here


CodeArray = NDArray[np.int8] | NDArray[np.uint8] | NDArray[np.int16]  # [out, in]


class Groups(NamedTuple):
    """What the codes of a group share; a group is a run of columns of one row. Each is [out, groups]."""

    scale: Float32
    minimum: Float32 | None = None
    # The number that was subtracted from codes of 0 to 15, if that is where they come from.
    zero: NDArray[np.int8] | NDArray[np.int16] | None = None

    def values(self, codes: CodeArray) -> Float32:
        """Returns the values of codes [out, in], each product rounded to float32, which holds those of
        half-precision scales exactly."""
        out, into = codes.shape
        grouped = codes.reshape(out, self.scale.shape[1], -1).astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            values = grouped * self.scale[..., None]
            if self.minimum is not None:
                values += self.minimum[..., None]
        return values.reshape(out, into)


def matrix_of_codes(
    name: str,
    shape: tuple[int, int],
    groups: Groups,
    lowest: int,
    highest: int,
    floats: Format,
    read: Callable[[], CodeArray],
) -> Tensor:
    """Returns a matrix whose codes, from `lowest` to `highest`, are read when it is used. `floats` is what it
    becomes if no packed format holds it exactly."""
    format = _packed_format(shape[1], groups, lowest, highest) or floats

    def compute() -> Bytes:
        codes = read()
        if format is floats:
            return quantize(floats, groups.values(codes).reshape(-1))
        return _PACKERS[format.name](codes, groups)

    return Computed.later(name, shape, format, compute)


def _packed_format(into: int, groups: Groups, lowest: int, highest: int) -> Format | None:
    scale, minimum, zero = groups
    if (into // scale.shape[1]) % _BLOCK or not _is_half(scale):
        return None
    if minimum is not None:
        return FORMATS["Q4_1"] if 0 <= lowest <= highest <= 15 and _is_half(minimum) else None
    if -8 <= lowest <= highest <= 7:
        return FORMATS["Q4_0"]
    if zero is not None:
        return INT4
    return FORMATS["Q8_0"] if -128 <= lowest <= highest <= 127 else None


def _is_half(numbers: Float32) -> bool:
    """Tells whether float16 holds all these numbers exactly, and they are finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool((numbers.astype(np.float16).astype(np.float32) == numbers).all()) and bool(
            np.isfinite(numbers).all()
        )


def _blocks(codes: CodeArray, numbers: Float32 | NDArray[np.uint8]) -> Bytes:
    """Returns the bytes of numbers of groups, [out, groups], once for each block of 32 codes."""
    each = codes.shape[1] // numbers.shape[1] // _BLOCK  # blocks of a group
    stored = numbers if numbers.dtype == np.uint8 else numbers.astype("<f2")
    return np.repeat(stored, each, axis=1).reshape(-1, 1).view(np.uint8)


def _nibbles(codes: NDArray[np.int16]) -> Bytes:
    blocks = codes.astype(np.uint8).reshape(-1, _BLOCK)
    half = _BLOCK // 2
    return np.asarray(blocks[:, :half] | (blocks[:, half:] << 4))


def _joined(*parts: Bytes) -> Bytes:
    return np.concatenate(parts, axis=-1).reshape(-1)


def _pack_q8_0(codes: CodeArray, groups: Groups) -> Bytes:
    stored = codes.astype(np.int8).reshape(-1, _BLOCK).view(np.uint8)
    return _joined(_blocks(codes, groups.scale), stored)


def _pack_q4_0(codes: CodeArray, groups: Groups) -> Bytes:
    return _joined(_blocks(codes, groups.scale), _nibbles(codes.astype(np.int16) + 8))


def _pack_q4_1(codes: CodeArray, groups: Groups) -> Bytes:
    assert groups.minimum is not None
    heads = _blocks(codes, groups.scale), _blocks(codes, groups.minimum)
    return _joined(*heads, _nibbles(codes.astype(np.int16)))


def _pack_int4(codes: CodeArray, groups: Groups) -> Bytes:
    assert groups.zero is not None
    zero = groups.zero
    grouped = codes.astype(np.int16).reshape(len(codes), zero.shape[1], -1) + zero[..., None]
    heads = _blocks(codes, groups.scale), _blocks(codes, zero.astype(np.uint8))
    return _joined(*heads, _nibbles(grouped))


_PACKERS = {"Q8_0": _pack_q8_0, "Q4_0": _pack_q4_0, "Q4_1": _pack_q4_1, "INT4": _pack_int4}
