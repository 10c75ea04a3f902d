"""How much memory weights take on each op set, known before any of it is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from glassloop.ops.memory import format_bytes
from glassloop.ops.quant import Format
from glassloop.ops.tensor import Tensor

MatrixBytes = Callable[[tuple[int, ...], Format], int]  # `Ops.matrix_bytes` of an op set


def weight_bytes(tensors: Iterable[Tensor], matrix_bytes: MatrixBytes) -> int:
    """Returns the bytes that weights take on an op set; vectors are float32 on all of them."""
    return sum(
        matrix_bytes(tensor.shape, tensor.format) if len(tensor.shape) == 2 else 4 * tensor.size
        for tensor in tensors
    )


def memory_line(tensors: Iterable[Tensor]) -> str:
    """Returns what weights take on each op set, in one line. None of the op sets is loaded for it."""
    from glassloop.ops.native import library
    from glassloop.ops.native.packer import packed_bytes

    tensors = list(tensors)
    native = format_bytes(weight_bytes(tensors, packed_bytes)) if library.available() else "unknown here"
    torch = format_bytes(weight_bytes(tensors, _floats_of(2)))  # in half precision
    reference = format_bytes(weight_bytes(tensors, _floats_of(4)))
    return f"native {native}, torch {torch} (less if packed), reference {reference}"


def _floats_of(size: int) -> MatrixBytes:
    return lambda shape, _: size * shape[0] * shape[1]
