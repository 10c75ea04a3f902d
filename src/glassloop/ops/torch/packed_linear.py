"""Launches the product of a few rows with a packed matrix, `kernels/packed_linear.cu`, which is compiled on
first use."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from glassloop.ops.torch import nvrtc
from glassloop.ops.torch.device import Device
from glassloop.ops.torch.matrix import MatrixProduct
from glassloop.ops.torch.packed import CHUNK, UNIT, Form, PackedMatrix
from glassloop.ops.torch.tiles import cdiv

SOURCE = Path(__file__).parent / "kernels" / "packed_linear.cu"
SLICES = 8  # of the columns, which are added up by themselves; as in the kernel
MOST_ROWS = 64  # up to which it is faster than to expand the matrix

_THREADS = 32 * SLICES
_HAS = (1, 2, 3)  # the activations that it has


class Division(NamedTuple):
    """How the kernel divides its work, which decides the speed alone; packed_linear.cu says what the words
    mean."""

    tiles: int
    span: int
    stages: int
    blocks: int
    x_shared: bool


class Found(NamedTuple):
    """A division of a product, and the settings that follow from the number of rows."""

    division: Division
    eights: int
    shared: int  # bytes of shared memory


# For one row, up to 8, more: the first that fits the shared memory is taken. Found by the time of whole steps
# on an H200. Where two blocks fit a multiprocessor, there have to be blocks for all of them: else some would
# have two, and others none.
ONE = (Division(1, 4, 2, 2, True),)
SOME = (Division(2, 2, 3, 1, True), Division(2, 2, 3, 1, False))
MANY = (Division(2, 1, 2, 1, True), Division(2, 2, 3, 1, False))
SMALL = (Division(1, 2, 2, 1, False), Division(1, 1, 1, 1, False))


def can_launch(product: MatrixProduct, device: Device) -> bool:
    """Returns whether the kernel computes a product."""
    rows, _, x, added, weight, _, gated, activation = product
    if not isinstance(weight, PackedMatrix) or rows > MOST_ROWS or x.stride(0) % 4:
        return False
    if device.interpreted or not nvrtc.is_available():
        return False
    has_inputs = weight.data.is_contiguous() and (added is None or added.dtype is torch.float32)
    has_activation = not gated or activation in _HAS
    fitting = division_for(rows, weight.shape[1], weight.form, device.shared_memory)
    return has_inputs and has_activation and fitting is not None


def launch(product: MatrixProduct, device: Device, early: bool) -> None:
    """Computes a product by the kernel on the current stream. `early` is whether the kernel starts before the
    previous one has ended."""
    rows, out, x, added, weight, bias, _, _ = product
    assert isinstance(weight, PackedMatrix)
    height, columns = weight.shape[0] // weight.matrices, weight.shape[1]
    fitting = division_for(rows, columns, weight.form, device.shared_memory)
    assert fitting is not None
    tiles = cdiv(cdiv(height, UNIT) * weight.matrices, 2 * fitting.division.tiles)
    grid = min(tiles, device.processors * fitting.division.blocks), cdiv(rows, 8 * fitting.eights)
    # An argument that the kernel does not read is any array.
    bias, residual = (out if each is None else each for each in (bias, added))
    arrays = (x, weight.data, bias, residual, out)
    sizes = (rows, height, out.shape[1], columns, x.stride(0), residual.stride(0), out.stride(0))
    arguments = [*[ctypes.c_void_p(each.data_ptr()) for each in arrays], *map(ctypes.c_int, sizes)]
    settings = tuple(settings_for(product, fitting, early).items())
    nvrtc.launch(SOURCE, settings, grid, _THREADS, fitting.shared, arguments, early)


@cache
def division_for(rows: int, columns: int, form: Form, shared: int) -> Found | None:
    """Returns how the kernel divides a product of so many rows and columns within these bytes of shared
    memory; None if they do not suffice."""
    eights = next(each for each in (1, 2, 4) if rows <= 8 * each or each == 4)
    for division in (*(ONE if rows == 1 else ()), *(SOME if rows <= 8 else MANY), *SMALL):
        needed = _shared_bytes(min(rows, 8 * eights), columns, form, division)
        if needed * division.blocks <= shared:
            return Found(division, eights, needed)
    return None


def settings_for(product: MatrixProduct, fitting: Found, early: bool) -> dict[str, int]:
    """Returns the constants that the kernel is compiled with."""
    weight = product.weight
    assert isinstance(weight, PackedMatrix)
    return {
        "BITS": weight.form.bits,
        "MIDDLE": int(weight.form.has_middle),
        "GROUP": weight.form.group,
        "FLOAT": int(weight.form.is_float),
        **table_words(weight.form.table),
        "MATRICES": weight.matrices,
        "GATED": int(product.gated),
        "ACTIVATION": product.activation if product.gated else 0,
        "BIASED": int(product.bias is not None),
        "ADDED": int(product.added is not None),
        "HALF_OUT": int(product.out.dtype is torch.bfloat16),
        "EARLY": int(early),
        "EIGHTS": fitting.eights,
        "X_SHARED": int(fitting.division.x_shared),
        "TILES": fitting.division.tiles,
        "SPAN": fitting.division.span,
        "STAGES": fitting.division.stages,
        "BLOCKS": fitting.division.blocks,
    }


def table_words(table: tuple[int, ...]) -> dict[str, int]:
    """Returns the values of 4-bit codes as the four words that the kernel looks them up in."""
    words = np.array(table or [0] * 16, np.int8).view("<u4").tolist()
    return {"TABLE": int(bool(table)), **{f"TABLE_{number}": word for number, word in enumerate(words)}}


def _shared_bytes(rows: int, columns: int, form: Form, division: Division) -> int:
    """Returns the bytes of shared memory of a block of so many rows: stages, sums and x."""
    stages = SLICES * division.stages * 2 * division.tiles * division.span * form.chunk_bytes
    sums = 2 * SLICES * division.tiles * rows * 16 * 4
    x = SLICES * cdiv(columns // CHUNK, SLICES) * rows * 2 * CHUNK if division.x_shared else 0
    return stages + sums + x
