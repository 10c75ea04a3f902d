"""Values as bytes, for calls between an ingress and a replica: with runs in them, or in parts.

A run refers to its engine and cannot be pickled; it travels as a glass file, and is attached to the engine of
the side that reads it.
"""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Iterator
from io import BytesIO
from typing import Any, NamedTuple

from glassloop.record.format.glass_file import from_bytes, to_bytes
from glassloop.record.run import Maker, Run

_PART = 1 << 20  # bytes; a message of gRPC may have 4 MiB


class PickledPart(NamedTuple):
    """A part of a pickled value."""

    data: bytes
    is_last: bool


def in_parts(value: Any) -> Iterator[PickledPart]:
    """Yields a value without runs as parts that fit into a message."""
    data = pickle.dumps(value, protocol=5)
    for start in range(0, len(data), _PART):
        yield PickledPart(data[start : start + _PART], start + _PART >= len(data))


async def from_parts(parts: AsyncIterator[PickledPart]) -> AsyncIterator[Any]:
    """Yields the values of which `in_parts` has made parts."""
    begun: list[bytes] = []
    async for part in parts:
        begun.append(part.data)
        if part.is_last:
            yield pickle.loads(b"".join(begun))
            begun.clear()


def dumps(value: Any) -> bytes:
    """Returns a value as bytes. Functions and classes in it are named by their module, so they must be at the
    top level of one that the other side can import."""
    file = BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    runs = to_bytes(pickler.runs) if pickler.runs else b""
    return pickle.dumps((runs, file.getvalue()))


def loads(data: bytes, maker: Maker | None = None) -> Any:
    """Returns the value of `dumps`. Its runs are attached to `maker`. Only for bytes of this cluster's own
    processes: a pickle can call any function."""
    packed, value = pickle.loads(data)
    runs = from_bytes(packed) if packed else []
    for run in runs:
        run.attach(maker)
    return _Unpickler(BytesIO(value), runs).load()


class _Pickler(pickle.Pickler):
    """Pickles a value; runs in it are collected, and only their places are written."""

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.runs: list[Run] = []
        self._places: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, Run):
            return None
        if id(value) not in self._places:
            self._places[id(value)] = len(self.runs)
            self.runs.append(value)
        return self._places[id(value)]


class _Unpickler(pickle.Unpickler):
    """Reads what `_Pickler` wrote, with these runs at their places."""

    def __init__(self, file: BytesIO, runs: list[Run]) -> None:
        super().__init__(file)
        self._runs = runs

    def persistent_load(self, place: Any) -> Run:
        return self._runs[int(place)]
