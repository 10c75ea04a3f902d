"""The cache on disk, and how a file gets there whole or not at all.

`home()/models/<slug>/` has what is complete, `home()/staging/<slug>/` what is being pulled, `home()/locks/`
one lock for each name. A file is written in staging, checked, synced and renamed: whatever ends the process,
a model that can be seen is complete.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from glassloop.errors import RegistryError


def home() -> Path:
    """Returns $GLASSLOOP_HOME, else $XDG_CACHE_HOME/glassloop, else ~/.cache/glassloop; absolute."""
    if named := os.environ.get("GLASSLOOP_HOME"):
        return Path(named).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says to ignore a relative path.
    base = Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache"
    return base / "glassloop"


def models_folder(slug: str) -> Path:
    return _below("models", slug)


def staging_folder(slug: str) -> Path:
    return _below("staging", slug)


def _below(kind: str, slug: str) -> Path:
    # `slug` makes these names, but deleting depends on them: each must be one plain name.
    if slug in ("", ".", "..") or "/" in slug or "\\" in slug or "\0" in slug:
        raise RegistryError(f"{slug!r} cannot be the name of a folder in the cache")
    return home() / kind / slug


def size_text(size: float) -> str:
    """Returns a readable number of bytes, in the decimal units that package indexes and disks use."""
    for unit in ("B", "kB", "MB"):
        if size < 999.95:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"


def tree_size(folder: Path) -> int:
    """Returns the bytes of all files below a folder, which may change meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).lstat().st_size
            except OSError:
                continue
    return total


@contextmanager
def storage_errors(doing: str) -> Iterator[None]:
    """Turns an error of the file system into a RegistryError of one line."""
    try:
        yield
    except OSError as error:
        raise RegistryError(f"cannot {doing}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    where = home()
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of {where} is full; free some space or set GLASSLOOP_HOME to a folder elsewhere"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"no permission for {error.filename or where}; set GLASSLOOP_HOME to a folder of your own"
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return f"{error.filename or where} is not a folder; GLASSLOOP_HOME (now {where}) must be one"
    return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")


def check_space(name: str, needed: int) -> None:
    """Raises RegistryError if the disk has less room than a pull needs."""
    import shutil

    free = shutil.disk_usage(home()).free
    if free < needed:
        raise RegistryError(
            f"cannot pull {name!r}: it needs {size_text(needed)} of temporary space, and {home()} has "
            f"{size_text(free)} free; free some space or set GLASSLOOP_HOME to a folder elsewhere"
        )


@contextmanager
def locked(slug: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds the lock of one name; calls `waiting` first if another process has it.

    The system drops the lock of a process that dies, so a lock is never stale.
    """
    import filelock

    folder = home() / "locks"
    with storage_errors(f"use the cache {home()}"):
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(str(folder / f"{slug}.lock"))
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            waiting()
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def sync(path: Path) -> None:
    """Writes a file, or the names in a folder, through to the disk."""
    if path.is_dir() and sys.platform == "win32":
        return  # Windows has no such call for folders
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def delete_tree(path: Path) -> None:
    """Removes a folder, a file or a link (never what it points to), if it exists."""
    import shutil

    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
