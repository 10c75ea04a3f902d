"""What every command shares when it speaks to a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on stderr that something takes a while, and take the line away when it is done."""
    if not sys.stderr.isatty():
        yield
        return
    sys.stderr.write(f"{what} …")
    sys.stderr.flush()
    try:
        yield
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
