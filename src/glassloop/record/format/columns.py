"""Columns: named arrays of numbers and texts, packed into one compressed block and back, bit for bit.

Within a column the first bytes of all numbers come first, then the second bytes and so on: the signs and
exponents of floats are alike and compress well when they are next to each other.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassloop.errors import TraceError

Column = NDArray[Any]
Plan = list[list[Any]]  # [name, type, number of bytes] of each column, in order

# The types of columns; all are little-endian.
TYPES = ("u1", "u2", "u4", "i4", "f4", "f8")
_LEVEL = 2  # level 6 takes 1.5 times as long and saves 1 %


def pack(columns: Mapping[str, Column]) -> tuple[Plan, bytes]:
    """Returns the plan of the columns, for the header, and the compressed block."""
    plan: Plan = []
    parts = []
    for name, column in columns.items():
        kind = f"{column.dtype.kind}{column.dtype.itemsize}"
        if kind not in TYPES:
            raise ValueError(f"column {name} is of type {kind}")
        little = np.ascontiguousarray(column, column.dtype.newbyteorder("<"))
        planes = little.view(np.uint8).reshape(len(column), column.dtype.itemsize).T
        plan.append([name, kind, planes.size])
        parts.append(planes.tobytes())
    return plan, zlib.compress(b"".join(parts), _LEVEL)


def unpack(plan: Plan, block: bytes) -> dict[str, Column]:
    """Returns the columns of a block. The plan was checked (`check_plan`)."""
    data = inflate(block, sum(int(size) for _, _, size in plan))
    columns: dict[str, Column] = {}
    at = 0
    for name, kind, size in plan:
        dtype = np.dtype(f"<{kind}")
        planes = np.frombuffer(data, np.uint8, size, at).reshape(dtype.itemsize, -1)
        columns[name] = np.ascontiguousarray(planes.T).reshape(-1).view(dtype)
        at += size
    return columns


def inflate(block: bytes, size: int) -> bytes:
    """Returns the block uncompressed. Raises unless that is exactly `size` bytes; never allocates more."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(block, size + 1)
    except zlib.error as error:
        raise TraceError(f"a block cannot be uncompressed: {error}") from error
    if len(data) != size or not stream.eof or stream.unused_data:
        raise TraceError(f"a block does not hold the {size} bytes that it should")
    return data


def texts(items: Sequence[str]) -> tuple[Column, Column]:
    """Returns texts as two columns: their lengths in characters, and all of them in UTF-8."""
    lengths = np.array([len(item) for item in items], np.uint32)
    return lengths, np.frombuffer("".join(items).encode("utf-8", "surrogatepass"), np.uint8)


def texts_back(name: str, lengths: Column, data: Column) -> list[str]:
    try:
        whole = data.tobytes().decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise TraceError(f"column {name} is not UTF-8 at byte {error.start}") from error
    return _cut(name, whole, lengths)


def blobs(items: Sequence[bytes]) -> tuple[Column, Column]:
    """Returns byte strings as two columns: their lengths, and all of them."""
    return np.array([len(item) for item in items], np.uint32), np.frombuffer(b"".join(items), np.uint8)


def blobs_back(name: str, lengths: Column, data: Column) -> list[bytes]:
    return _cut(name, data.tobytes(), lengths)


def _cut(name: str, whole: Any, lengths: Column) -> list[Any]:
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    if (ends[-1] if ends else 0) != len(whole):
        raise TraceError(f"column {name} is not as long as its lengths say")
    return [whole[end - size : end] for end, size in zip(ends, lengths.tolist(), strict=True)]
