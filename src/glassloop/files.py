"""Opens files from outside: none is read that is longer than expected, and every error names the file."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from glassloop.errors import GlassloopError


def read_at_most(path: Path, most: int, kind: type[GlassloopError]) -> bytes:
    """Returns a file's bytes. One that cannot be read, or has more bytes, is an error of this kind."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise kind(f"{path}: is longer than {most} bytes")
            return file.read(size)
    except OSError as error:
        raise kind(f"{path}: cannot be read: {error.strerror}") from None


def map_file(path: Path, kind: type[GlassloopError]) -> mmap.mmap:
    """Returns a read-only map of a file. One that is empty or cannot be read is an error of this kind."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise kind(f"{path}: the file is empty") from None
    except OSError as error:
        raise kind(f"{path}: cannot be read: {error.strerror}") from None
