"""Runs as `.glass` files: a seam. Where the trace can save and load runs, so can the server."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from glassloop.errors import GlassloopError
from glassloop.server.errors import APIError
from glassloop.trace.run import Run

MEDIA_TYPE = "application/vnd.glassloop.run"


def save(run: Run) -> bytes:
    write: Any = getattr(run, "save", None)
    if write is None:
        raise _cannot()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.glass"
        write(path)
        return path.read_bytes()


def load(data: bytes) -> Run:
    """A run from a file that a stranger may have made: the format holds data, and nothing that runs."""
    read: Any = getattr(Run, "load", None)
    if read is None:
        raise _cannot()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.glass"
        path.write_bytes(data)
        try:
            run = read(path)
        except GlassloopError as error:
            # The name of our temporary file means nothing to the client.
            raise APIError(400, str(error).replace(str(path), "the file"), code="bad_file") from None
    assert isinstance(run, Run)
    return run


def _cannot() -> APIError:
    return APIError(501, "this version has no .glass files yet", code="not_implemented")
