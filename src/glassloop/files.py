"""Reads files that somebody else wrote, none of them longer than expected."""

from __future__ import annotations

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
