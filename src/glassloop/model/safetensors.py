"""Reads safetensors: one file, or a folder with an index of shards. Files are memory-mapped.

The header is JSON from outside; each entry is checked before it is used.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from math import prod
from mmap import mmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from glassloop.errors import ModelError
from glassloop.model.unsupported import PICKLES, pickle_only
from glassloop.ops.quant import FORMAT_BY_SAFETENSORS, Bytes
from glassloop.ops.tensor import Tensor
from glassloop.util.fields import json_object
from glassloop.util.files import in_parallel, map_file, read_at_most
from glassloop.util.shown import printable, shown

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_MAX_HEADER = 25_000_000
_MAX_CONFIG = 10_000_000
_MAX_INDEX = 64_000_000
_MAX_DIMS = 8
_FORMATS = FORMAT_BY_SAFETENSORS
# Types that the forward pass does not use: of buffers (masks, position ids), and of quantized weights, which
# the modules of `quantized` read. Here only their size is checked.
_OTHER_SIZES = {
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U8": 1,
    "I8": 1,
    "U16": 2,
    "I16": 2,
    "U32": 4,
    "I32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}


def read_entries(folder: Path) -> list[Contents]:
    """Returns the headers and the mapped data of all weight files of a folder."""
    if not (folder / INDEX).exists():
        if not (folder / SINGLE).exists():
            raise ModelError(f"{folder}: {_why_no_weights(folder)}")
        return [read_contents(folder / SINGLE)]
    weight_map = read_json(folder / INDEX, _MAX_INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise ModelError(f"{folder / INDEX}: weight_map is not an object from tensor names to file names")
    names = sorted(set(weight_map.values()))
    for shard in names:
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise ModelError(
                f"{folder / INDEX}: weight_map names {shown(shard)}; a file in the same folder is expected"
            )
    shards = in_parallel(read_contents, [folder / shard for shard in names])
    stored = {name for contents in shards for name in contents.entries}
    for name, shard in weight_map.items():
        if name not in stored:
            raise ModelError(
                f"{folder / INDEX}: weight_map says {printable(name)} is in {shard}, but it is not there"
            )
    return shards


def _why_no_weights(folder: Path) -> str:
    """Says what to do about a folder without safetensors."""
    with suppress(OSError):
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
        if pickles:
            return pickle_only(printable(pickles[0]))
        ggufs = sorted(path.name for path in folder.iterdir() if path.suffix == ".gguf")
        if ggufs:
            return f"has no {SINGLE}, but {printable(ggufs[0])}: give the path of that file"
    return f"has neither {SINGLE} nor {INDEX}"


class TensorEntry(NamedTuple):
    """One tensor of a file as its header has it."""

    kind: str  # "F32", "I8", …
    shape: tuple[int, ...]
    data: Bytes  # flat


class Contents(NamedTuple):
    """A safetensors file whose header has been checked."""

    metadata: dict[str, Any]
    entries: dict[str, TensorEntry]
    mapping: mmap


def read_file(path: Path) -> dict[str, Tensor]:
    """Returns the tensors of a file whose numbers are floats, by name."""
    contents = read_contents(path)
    return {
        name: Tensor(name, entry.shape, _FORMATS[entry.kind], entry.data, contents.mapping)
        for name, entry in contents.entries.items()
        if entry.kind in _FORMATS
    }


def read_contents(path: Path) -> Contents:
    """Returns the metadata and all tensors of a file."""
    mapping = map_file(path, ModelError)
    whole = np.frombuffer(mapping, np.uint8)
    if len(whole) < 8:
        raise ModelError(f"{path}: header size needs 8 bytes where {len(whole)} are left (truncated?)")
    header_size = int(whole[:8].view("<u8")[0])
    if header_size > min(_MAX_HEADER, len(whole) - 8):
        raise ModelError(f"{path}: header size is {header_size}, more than the file holds (truncated?)")
    header = json_object(bytes(whole[8 : 8 + header_size]), f"{path}: header", ModelError, once=True)
    metadata = header.pop("__metadata__", None)
    data = whole[8 + header_size :]

    entries: dict[str, TensorEntry] = {}
    ranges: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        kind, shape, begin, end = _entry(path, name, entry)
        size = prod(shape) * (_FORMATS[kind].block_bytes if kind in _FORMATS else _OTHER_SIZES[kind])
        if not 0 <= begin <= end <= len(data) or end - begin != size:
            raise ModelError(
                f"{path}: {printable(name)} has data_offsets [{begin}, {end}]; {size} bytes within"
                f" {len(data)} are expected (truncated?)"
            )
        if size:
            ranges.append((begin, end, name))
        entries[name] = TensorEntry(kind, shape, data[begin:end])
    ranges.sort()
    for (_, end, first), (begin, _, second) in pairwise(ranges):
        if begin < end:
            raise ModelError(f"{path}: {printable(second)} overlaps {printable(first)}")
    return Contents(metadata if isinstance(metadata, dict) else {}, entries, mapping)


def _entry(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    """Returns dtype, shape and data_offsets of one header entry, each of the right type."""
    name = printable(name)
    if not isinstance(entry, dict):
        raise ModelError(f"{path}: {name} is not an object in the header")
    kind: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not isinstance(kind, str) or (kind not in _FORMATS and kind not in _OTHER_SIZES):
        raise ModelError(
            f"{path}: {name} has dtype {shown(kind)}; {', '.join(_FORMATS)} are read, and F8_E4M3 and"
            " integers where config.json says what they mean"
        )
    if not _whole_numbers(shape) or len(shape) > _MAX_DIMS:
        raise ModelError(
            f"{path}: {name} has shape {shown(shape)}; a short list of whole numbers is expected"
        )
    if not _whole_numbers(offsets) or len(offsets) != 2:
        raise ModelError(f"{path}: {name} has data_offsets {shown(offsets)}; [begin, end] is expected")
    return kind, tuple(shape), offsets[0], offsets[1]


def _whole_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(number) is int and 0 <= number < 1 << 48 for number in value)


def read_json(path: Path, most: int = _MAX_CONFIG) -> dict[str, Any]:
    """Reads a JSON object from a file of at most `most` bytes."""
    return json_object(read_at_most(path, most, ModelError), str(path), ModelError)
