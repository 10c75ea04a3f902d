"""The tensors of a folder as they are stored, handed out by name, type and shape: what the readers of
quantized safetensors share. Everything in a file may lie, so every array is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassloop.errors import ModelError
from glassloop.model.safetensors import Contents, TensorEntry
from glassloop.ops.quant import FORMAT_BY_SAFETENSORS, Float32, Format, dequantize
from glassloop.util.shown import printable

FLOATS: Mapping[str, Format] = FORMAT_BY_SAFETENSORS
_WHOLE: dict[str, np.dtype[Any]] = {
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "I64": np.dtype("<i8"),
    "F8_E4M3": np.dtype("u1"),  # their bits
    "F8_E8M0": np.dtype("u1"),
}


class Source:
    """The tensors of all shards of a folder. `used` are the names of those that a reader has taken."""

    def __init__(self, where: str, shards: Sequence[Contents], dtype: Format) -> None:
        self.where = where
        self.dtype = dtype  # of the model's own numbers, to which values are rounded that have no exact form
        self.entries: dict[str, TensorEntry] = {}
        for shard in shards:
            self.entries.update(shard.entries)
        self.used: set[str] = set()

    def error(self, name: str, what: str) -> ModelError:
        return ModelError(f"{self.where}: {printable(name)} {what}")

    def stems(self, suffix: str) -> list[str]:
        """Returns the names that end in `suffix`, without it."""
        return [name.removesuffix(suffix) for name in self.entries if name.endswith(suffix)]

    def entry(self, name: str, kinds: Sequence[str], dims: int | None = None) -> TensorEntry:
        """Returns a tensor that is of one of these types and has so many dimensions."""
        entry = self.entries.get(name)
        if entry is None:
            raise self.error(name, "is missing")
        if entry.kind not in kinds:
            raise self.error(name, f"has dtype {entry.kind}; {' or '.join(kinds)} is expected")
        if dims is not None and len(entry.shape) != dims:
            raise self.error(name, f"has shape {entry.shape}; {dims} dimensions are expected")
        if 0 in entry.shape:
            raise self.error(name, f"has shape {entry.shape}, with nothing in it")
        self.used.add(name)
        return entry

    def optional(self, name: str) -> bool:
        return name in self.entries

    def whole(self, name: str, kinds: Sequence[str], shape: tuple[int, ...] | None = None) -> NDArray[Any]:
        """Returns whole numbers, or the bits of small floats; with `shape`, raises unless they have it."""
        entry = self.entry(name, kinds, None if shape is None else len(shape))
        self._check_shape(name, entry, shape)
        numbers: NDArray[Any] = entry.data.view(_WHOLE[entry.kind]).reshape(entry.shape)
        return numbers

    def floats(self, name: str, shape: tuple[int, ...] | None = None) -> Float32:
        """Returns numbers as float32."""
        entry = self.entry(name, tuple(FLOATS), None if shape is None else len(shape))
        self._check_shape(name, entry, shape)
        return dequantize(FLOATS[entry.kind], entry.data).reshape(entry.shape)

    def _check_shape(self, name: str, entry: TensorEntry, shape: tuple[int, ...] | None) -> None:
        if shape is not None and entry.shape != shape:
            raise self.error(name, f"has shape {entry.shape}; {shape} is expected")

    def forget(self, *names: str) -> None:
        """Marks tensors that a forward pass in floats has no use for, such as scales of activations."""
        self.used |= {name for name in names if name in self.entries}


def unpacked(words: NDArray[Any], bits: int, count: int) -> NDArray[np.uint8]:
    """Returns `count` numbers of 1 to 8 bits from each row of packed words, the lowest bits first: number i
    begins at bit i * bits of its row."""
    raw = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), -1)
    if bits == 8:
        return raw[:, :count]
    if bits == 4:
        return np.stack([raw & 15, raw >> 4], axis=-1).reshape(len(raw), -1)[:, :count]
    stream = np.unpackbits(raw, axis=-1, bitorder="little")[:, : count * bits]
    return np.packbits(stream.reshape(len(raw), count, bits), axis=-1, bitorder="little")[..., 0]
