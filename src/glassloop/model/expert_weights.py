"""Finds the weights of experts in a file: each in a tensor of its own, or all of a layer in one."""

from __future__ import annotations

import numpy as np

from glassloop.errors import ModelError
from glassloop.model.expert_families import ExpertPart
from glassloop.ops.quant import Bytes
from glassloop.ops.tensor import Computed, Tensor


def split_kind(kind: str) -> tuple[str, str]:
    """Returns the entry of a family's names for one of our weights, and the number of the expert:
    "experts.gate" and "5" for "experts.5.gate", else the same kind and no number."""
    parts = kind.split(".")
    return (f"experts.{parts[2]}", parts[1]) if parts[0] == "experts" else (kind, "")


def name_of(part: ExpertPart, index: str, number: str, suffix: str) -> str:
    """Returns the name of a weight in a file, without the prefix that all have."""
    return part.name.format(i=index, e=number) + part.suffixes[suffix == "bias"]


def take(where: str, tensor: Tensor, part: ExpertPart, number: str, count: int, suffix: str) -> Tensor:
    """Returns the weight of one expert of a layer with `count`."""
    if "{e}" in part.name:
        return tensor
    if not number:  # of the router
        return tensor._replace(shape=(count,)) if tensor.shape == (1, count) else tensor
    axes = 2 if suffix == "bias" else 3
    if len(tensor.shape) != axes or tensor.shape[0] != count:
        raise ModelError(
            f"{where}: {tensor.name} has shape {tensor.shape}; one of {axes} axes, the first of {count}"
            " experts, is expected"
        )
    if isinstance(tensor, Computed):
        tensor.keep_for(count * part.of)
    one = tensor.rows(slice(int(number), int(number) + 1))
    transposed = part.transposed and axes == 3
    # Formats in blocks are stored as products read them: [experts, out, in].
    if transposed and one.format.take_apart is None:
        one = _turned(one)
    else:
        one = one._replace(shape=one.shape[1:])
    if part.of == 1:
        return one
    if one.shape[0] % part.of:
        raise ModelError(
            f"{where}: {tensor.name} has {one.shape[0]} outputs, which do not split in {part.of}"
        )
    size = one.shape[0] // part.of
    if part.interleaved:
        return one.rows(np.arange(part.place, one.shape[0], part.of))
    return one.rows(slice(part.place * size, (part.place + 1) * size))


def _turned(one: Tensor) -> Tensor:
    """Returns a matrix of floats [1, in, out] as [out, in], computed when it is read."""
    _, into, out = one.shape

    def compute() -> Bytes:
        values = one.data.reshape(into, out, -1)
        return np.ascontiguousarray(values.swapaxes(0, 1)).reshape(-1)

    return Computed.later(one.name, (out, into), one.format, compute)
