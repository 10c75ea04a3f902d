"""`.glass` files and their bytes as `Run`s, and back; `glass_bytes.py` has the layout."""

from __future__ import annotations

import os

from glassloop.record.format.file_limits import FileLimits
from glassloop.record.format.glass_bytes import LIMITS, from_bytes_as, read_as
from glassloop.record.format.glass_bytes import to_bytes as to_bytes
from glassloop.record.format.glass_bytes import write as write
from glassloop.record.run import Run


def from_bytes(
    data: bytes, name: str = "the file", *, limits: FileLimits = LIMITS, only_first: bool = False
) -> list[Run]:
    """Returns the runs of a file, or its first one alone. Every number in them was checked; all errors are
    `TraceError`s, which call the file `name`."""
    return from_bytes_as(Run, data, name, limits=limits, only_first=only_first)


def read(path: str | os.PathLike[str]) -> list[Run]:
    """Returns the runs of a file."""
    return read_as(Run, path)
