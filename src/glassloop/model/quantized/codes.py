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

from glassloop.ops.quant import FORMATS, Bytes, Float32, Format, quantize
from glassloop.ops.tensor import Computed, Tensor

_BLOCK = 32  # values of a block of every packed format that is written here


class Codes(NamedTuple):
    """The parts of a matrix. A group is a run of columns of one row that share a scale."""

    codes: NDArray[np.int8] | NDArray[np.uint8] | NDArray[np.int16]  # [out, in]
    scale: Float32  # [out, groups]
    minimum: Float32 | None = None  # [out, groups]

    @property
    def values(self) -> Float32:
        """The values, each product rounded to float32, which holds those of half-precision scales exactly."""
        out, into = self.codes.shape
        grouped = self.codes.reshape(out, self.scale.shape[1], -1).astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            values = grouped * self.scale[..., None]
            if self.minimum is not None:
                values += self.minimum[..., None]
        return values.reshape(out, into)


def matrix_of_codes(
    name: str,
    shape: tuple[int, int],
    scale: Float32,
    minimum: Float32 | None,
    lowest: int,
    highest: int,
    floats: Format,
    read: Callable[[], Codes],
) -> Tensor:
    """Returns a matrix whose codes, from `lowest` to `highest`, are read when it is used. `floats` is what it
    becomes if no packed format holds it exactly."""
    format = _packed_format(shape[1], scale, minimum, lowest, highest) or floats

    def compute() -> Bytes:
        codes = read()
        return (
            _PACKERS[format.name](codes)
            if format is not floats
            else quantize(floats, codes.values.reshape(-1))
        )

    return Computed.later(name, shape, format, compute)


def _packed_format(
    into: int, scale: Float32, minimum: Float32 | None, lowest: int, highest: int
) -> Format | None:
    if (into // scale.shape[1]) % _BLOCK or not _is_half(scale):
        return None
    if minimum is None:
        name = "Q4_0" if -8 <= lowest <= highest <= 7 else "Q8_0" if -128 <= lowest <= highest <= 127 else ""
    else:
        name = "Q4_1" if 0 <= lowest <= highest <= 15 and _is_half(minimum) else ""
    return FORMATS.get(name)


def _is_half(numbers: Float32) -> bool:
    """Tells whether float16 holds all these numbers exactly, and they are finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool((numbers.astype(np.float16).astype(np.float32) == numbers).all()) and bool(
            np.isfinite(numbers).all()
        )


def _blocks(parts: Codes) -> tuple[NDArray[np.int16], list[Bytes]]:
    """Returns codes in blocks [blocks, 32], and the bytes of scale and minimum of each block."""
    codes = parts.codes.astype(np.int16).reshape(-1, _BLOCK)
    each = parts.codes.shape[1] // parts.scale.shape[1] // _BLOCK  # blocks of a group
    heads = []
    for numbers in (parts.scale, parts.minimum):
        if numbers is not None:
            halves = np.repeat(numbers.astype("<f2"), each, axis=1).reshape(-1, 1)
            heads.append(halves.view(np.uint8))
    return codes, heads


def _pack_q8_0(parts: Codes) -> Bytes:
    codes, heads = _blocks(parts)
    return np.concatenate([*heads, codes.astype(np.int8).view(np.uint8)], axis=-1).reshape(-1)


def _pack_nibbles(parts: Codes) -> Bytes:
    codes, heads = _blocks(parts)
    nibbles = (codes + (8 if parts.minimum is None else 0)).astype(np.uint8)
    half = _BLOCK // 2
    packed = nibbles[:, :half] | (nibbles[:, half:] << 4)
    return np.concatenate([*heads, packed], axis=-1).reshape(-1)


_PACKERS = {"Q8_0": _pack_q8_0, "Q4_0": _pack_nibbles, "Q4_1": _pack_nibbles}
