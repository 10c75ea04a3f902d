"""Reads, maps and writes files; what is read is untrusted and of bounded size. Errors name the file."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

from glassloop.errors import GlassloopError

Opened = TypeVar("Opened")
_AT_ONCE = 8  # files that are opened in parallel


def read_at_most(path: str | Path, most: int, kind: type[GlassloopError]) -> bytes:
    """Returns the bytes of a regular file. Raises `kind` if it cannot be read or is longer than `most`."""
    try:
        # Non-blocking: opening a named pipe must not wait for a writer.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            facts = os.fstat(handle)
            if not stat.S_ISREG(facts.st_mode):
                other = "a folder" if stat.S_ISDIR(facts.st_mode) else "a pipe or a device"
                raise kind(f"{path}: cannot be read: it is {other}; a file is expected")
            if facts.st_size > most:
                raise kind(f"{path}: is longer than {most} bytes")
            with open(handle, "rb", closefd=False) as file:
                return file.read(facts.st_size)
        finally:
            os.close(handle)
    except (OSError, ValueError) as error:  # ValueError: a path that contains NUL
        raise kind(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def write_text(path: Path, text: str) -> None:
    """Writes a text file in UTF-8. Raises a `GlassloopError` if that fails."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise GlassloopError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file for writing that takes its name, and replaces an older one, when it is complete and on
    the disk."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise GlassloopError(f"cannot write {path}: {error.strerror or error}") from error


def _sync_folder(folder: Path) -> None:
    """Makes a renaming durable, where the system allows folders to be opened."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def map_file(path: Path, kind: type[GlassloopError]) -> mmap.mmap:
    """Returns a read-only map of a file. Raises `kind` if it is empty or cannot be read."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise kind(f"{path}: the file is empty") from None
    except OSError as error:
        raise kind(f"{path}: cannot be read: {error.strerror}") from None


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal digits."""
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def in_parallel(open_one: Callable[[Path], Opened], paths: Sequence[Path]) -> list[Opened]:
    """Returns what a function returns for each of some files, in order. Several are opened at once; of their
    errors the first is raised."""
    if len(paths) < 2:
        return [open_one(path) for path in paths]
    from concurrent.futures import ThreadPoolExecutor  # takes long to import

    with ThreadPoolExecutor(min(len(paths), _AT_ONCE)) as pool:
        return list(pool.map(open_one, paths))
