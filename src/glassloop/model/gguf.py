"""Reads GGUF files: one memory-mapped file with metadata, a vocabulary and quantized tensors.

Nothing in the file is trusted: every count and length is compared with the bytes that are left, so a damaged
or hostile file ends in a `ModelError` that names the file and the field, in time and memory bounded by the
size of the file.
"""

from __future__ import annotations

import struct
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from glassloop.errors import ModelError
from glassloop.model.unsupported import unknown_type
from glassloop.ops.quant import FORMAT_BY_GGUF_ID
from glassloop.ops.strings import read_strings
from glassloop.ops.tensor import Tensor
from glassloop.util.files import map_file
from glassloop.util.shown import printable, shown

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMS = 4
_STRING, _ARRAY = 8, 9
# GGUF value type -> NumPy type of the plain numbers.
_NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_LENGTH = struct.Struct("<Q")
_WINDOW = 1 << 22


class TensorInfo(NamedTuple):
    """One tensor as the header of a file describes it."""

    offset: int  # of its first byte, from the start of the data
    name: str
    shape: tuple[int, ...]  # row-major, as `Tensor` has it
    type_id: int


class GGUFHeader:
    """The header of a GGUF file: what it says of itself, whether or not its tensors can be read here.
    `metadata` has plain Python values, with string arrays as lists and number arrays as NumPy arrays.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._cursor = cursor = _Cursor(path)
        if cursor.take(4, "magic") != MAGIC:
            raise cursor.error("magic", f"is not 'GGUF'; this is {_what_it_is(cursor)}")
        version = cursor.number("<I", "version")
        if version not in _VERSIONS:
            raise cursor.error("version", f"is {version}; versions 2 and 3 (little-endian) are read")
        # A tensor takes at least 32 bytes of header, a metadata entry at least 13: absurd counts end here.
        tensor_count = cursor.count("tensor_count", at_least=32)
        entry_count = cursor.count("metadata_kv_count", at_least=13)
        self.metadata: dict[str, Any] = {}
        for _ in range(entry_count):
            key = cursor.string("a metadata key")
            if key in self.metadata:
                raise cursor.error(key, "appears twice in the metadata")
            self.metadata[key] = cursor.value(key)
        self._alignment = self._read_alignment()
        self.infos = [_read_info(cursor) for _ in range(tensor_count)]
        self._base = -(-cursor.at // self._alignment) * self._alignment

    def _read_alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
            raise self._cursor.error(
                "general.alignment", f"is {shown(alignment)}; a number from 1 to 1048576 is expected"
            )
        return alignment


class GGUFFile(GGUFHeader):
    """One GGUF file. `tensors` are by name, still in the file: the memory map lives as long as any of them
    does."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.tensors = _place_tensors(self._cursor, self.infos, self._base, self._alignment)


def _what_it_is(cursor: _Cursor) -> str:
    """Returns what a file is that is not GGUF: some downloads end in a file that only looks like one."""
    start = cursor.mapping[:64]
    if start.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not the file: 'git lfs pull' gets it"
    if start.lstrip().lower().startswith((b"<!doctype", b"<html")):
        return "an HTML page, not the file: download it again"
    return "not a GGUF file"


def _read_info(cursor: _Cursor) -> TensorInfo:
    name = cursor.string("a tensor name")
    n_dims = cursor.number("<I", f"{name}: n_dims")
    if not 0 < n_dims <= _MAX_DIMS:
        raise cursor.error(name, f"has {n_dims} dimensions; 1 to {_MAX_DIMS} are expected")
    # GGUF lists the fastest axis first; here it is the last.
    shape = tuple(reversed([cursor.number("<Q", f"{name}: dimension") for _ in range(n_dims)]))
    type_id = cursor.number("<I", f"{name}: type")
    return TensorInfo(cursor.number("<Q", f"{name}: offset"), name, shape, type_id)


def _place_tensors(cursor: _Cursor, infos: list[TensorInfo], base: int, alignment: int) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    end_of_previous, previous = 0, ""
    for offset, name, shape, type_id in sorted(infos):
        format = FORMAT_BY_GGUF_ID.get(type_id)
        if format is None:
            raise cursor.error(name, unknown_type(type_id))
        if 0 in shape or shape[-1] % format.block_values:
            raise cursor.error(name, f"has shape {shape}, which does not fit its type {format.name}")
        size = format.size_of(prod(shape))
        if offset % alignment:
            raise cursor.error(name, f"has offset {offset}, not a multiple of the alignment {alignment}")
        if base + offset + size > cursor.size:
            raise cursor.error(
                name,
                f"ends at byte {base + offset + size}; the file ends at {cursor.size} (truncated?)",
            )
        if name in tensors:
            raise cursor.error(name, "appears twice")
        if offset < end_of_previous:
            raise cursor.error(name, f"overlaps {printable(previous)}")
        end_of_previous, previous = offset + size, name
        tensors[name] = Tensor(
            name, shape, format, cursor.bytes[base + offset : base + offset + size], cursor.mapping
        )
    return tensors


class _Cursor:
    """A position in the file; reading past the end is an error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.at = 0
        self.mapping = map_file(path, ModelError)
        self.size = len(self.mapping)
        self.bytes = np.frombuffer(self.mapping, np.uint8)

    def error(self, field: str, what: str) -> ModelError:
        return ModelError(f"{self.path}: {printable(field)} {what}")

    def take(self, size: int, field: str) -> bytes:
        end = self.at + size
        if end > self.size:
            raise self.error(field, f"needs {size} bytes where {self.size - self.at} are left (truncated?)")
        taken = self.mapping[self.at : end]
        self.at = end
        return taken

    def number(self, layout: str, field: str) -> int:
        number: int = struct.unpack(layout, self.take(struct.calcsize(layout), field))[0]
        return number

    def count(self, field: str, at_least: int) -> int:
        """Reads a count of items of at least `at_least` bytes each; more than can be left is an error."""
        count = self.number("<Q", field)
        if count * at_least > self.size - self.at:
            raise self.error(field, f"is {count}, more than the {self.size - self.at} bytes left can hold")
        return count

    def string(self, field: str) -> str:
        # A token may be a part of a character: surrogateescape keeps its bytes for the tokenizer.
        return self.take(self.count(field, at_least=1), field).decode("utf-8", "surrogateescape")

    def strings(self, count: int, field: str) -> list[str]:
        """Reads many strings at once: a call for each token of a vocabulary would be slow."""
        strings, size = read_strings(self.bytes[self.at :], count)
        self.at += size
        length_at = _LENGTH.unpack_from
        while len(strings) < count:
            # Slices of a copy are made twice as fast as slices of the map.
            window = self.mapping[self.at : self.at + _WINDOW]
            at, size = 0, len(window)
            for _ in range(count - len(strings)):
                start = at + 8
                if start > size or (end := start + length_at(window, at)[0]) > size:
                    break
                strings.append(window[start:end].decode("utf-8", "surrogateescape"))
                at = end
            self.at += at
            if at == 0:  # longer than a window, or past the end of the file, where `string` raises
                strings.append(self.string(f"{field}[{len(strings)}]"))
        return strings

    def value(self, field: str) -> Any:
        kind = self.number("<I", f"{field}: type")
        if kind in _NUMBERS:
            return np.frombuffer(self.take(_NUMBERS[kind].itemsize, field), _NUMBERS[kind])[0].item()
        if kind == _STRING:
            return self.string(field)
        if kind == _ARRAY:
            return self._array(field)
        raise self.error(field, f"has the unknown value type {kind}")

    def _array(self, field: str) -> Any:
        kind = self.number("<I", f"{field}: element type")
        if kind == _STRING:
            return self.strings(self.count(field, at_least=8), field)
        if kind in _NUMBERS:
            count = self.count(field, at_least=_NUMBERS[kind].itemsize)
            return np.frombuffer(self.take(count * _NUMBERS[kind].itemsize, field), _NUMBERS[kind])
        raise self.error(field, f"is an array of value type {kind}; numbers or strings are expected")
