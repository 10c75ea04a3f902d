"""Runs as `.glass` files, over HTTP."""

from __future__ import annotations

import tempfile
from pathlib import Path

from glassloop.errors import GlassloopError
from glassloop.server.errors import APIError
from glassloop.trace.run import Run

MEDIA_TYPE = "application/vnd.glassloop.run"


def save(run: Run) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.glass"
        run.save(path)
        return path.read_bytes()


def load(data: bytes) -> Run:
    """A run from a file that a stranger may have made: the format holds data, and nothing that runs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.glass"
        path.write_bytes(data)
        try:
            return Run.load(path)
        except GlassloopError as error:
            # The name of our temporary file means nothing to the client.
            raise APIError(400, str(error).replace(str(path), "the file"), code="bad_file") from None
