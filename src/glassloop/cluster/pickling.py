"""Values with runs in them as bytes, for calls between an ingress and a replica. A run refers to its engine
and cannot be pickled; it travels as a glass file, and is attached to the engine of the side that reads it.
"""

from __future__ import annotations

import pickle
from io import BytesIO
from typing import Any

from glassloop.trace.file import from_bytes, to_bytes
from glassloop.trace.run import Maker, Run


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
    def __init__(self, file: BytesIO, runs: list[Run]) -> None:
        super().__init__(file)
        self._runs = runs

    def persistent_load(self, place: Any) -> Run:
        return self._runs[int(place)]
