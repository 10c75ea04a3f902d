"""The servers that tests of this folder share: a tiny model where a case is about parsing, the default model
where it is about streams and time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks.harness import Server, serving
from hostile.tiny import write_tiny, write_tiny_holes


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


class _Kept:
    """Starts a server when it is first wanted, and anew when an attack has ended it."""

    def __init__(self, *flags: str, model: str | Path) -> None:
        self._flags, self._model = flags, model
        self._open: list = []
        self._server: Server | None = None

    def get(self) -> Server:
        if self._server is None or not self._server.alive:
            self.close()
            context = serving(*self._flags, model=self._model)
            self._server = context.__enter__()
            self._open.append(context)
        return self._server

    def close(self) -> None:
        while self._open:
            self._open.pop().__exit__(None, None, None)
        self._server = None


@pytest.fixture(scope="session")
def _tiny(tiny_file: Path) -> Iterator[_Kept]:
    holes = write_tiny_holes(tiny_file.with_name("holes.safetensors"))
    flags = (
        "--kv-memory",
        "16MB",
        "--timeout",
        "60",
        "--keep",
        "5000",
        "--grace",
        "2",
        "--holes",
        str(holes),
    )
    kept = _Kept(*flags, model=tiny_file)
    yield kept
    kept.close()


@pytest.fixture(scope="session")
def _real() -> Iterator[_Kept]:
    kept = _Kept("--kv-memory", "500MB", "--timeout", "60", "--grace", "2", model="smollm2-135m-instruct")
    yield kept
    kept.close()


def _used(kept: _Kept) -> Iterator[Server]:
    """A server for one test, which must not hold up the server's event loop."""
    server = kept.get()
    before = len(server.held_up())
    yield server
    assert server.held_up()[before:] == []


@pytest.fixture
def tiny(_tiny: _Kept) -> Iterator[Server]:
    """A server with the tiny model; a new one if the last was killed."""
    yield from _used(_tiny)


@pytest.fixture
def real(_real: _Kept) -> Iterator[Server]:
    """A server with the default model; a new one if the last was killed."""
    yield from _used(_real)
