"""The names of the servers that use a store, and which of them are running.

A server is named after the address that it listens on, also after a restart, so that it finds the runs that
it made. Beside a store in a file it holds a lock of the operating system on a file of that name, which ends
with the process in any case; for PostgreSQL see `record/store/postgres_name.py`. Other programs that use the
store need no name.
"""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from filelock import BaseFileLock, FileLock, Timeout

from glassloop.errors import TraceError
from glassloop.record.store.postgres import is_postgres

RANDOM = "#"  # what a random number in a name begins with


class HeldName(Protocol):
    """The name of a server, held until `release`."""

    name: str

    def is_running(self, name: str) -> bool:
        """Returns whether another server of this name is running."""

    def shared_key(self) -> bytes:
        """Returns random bytes that are the same for all servers of the store."""

    def release(self) -> None: ...


def hold_name(store: str | Path, address: str | None) -> HeldName:
    """Returns a name for the server at an address that uses a store, a file or a PostgreSQL URL."""
    if not is_postgres(store):
        return ServerName(Path(store), address)
    from glassloop.record.store.postgres_name import PostgresName

    return PostgresName(str(store), address)


class ServerName:
    """The name of a server among those that use a store, held until `release`.

    It is the address. If none is given, or a server with this address is running already (in another
    container, for example), a random number is added.
    """

    def __init__(self, store: Path, address: str | None) -> None:
        self._folder = store.with_name(store.name + ".servers")
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = None if address is None else self._acquire(address)
            self.name = address or "server"
            if lock is None:
                self.name += RANDOM + os.urandom(6).hex()
                lock = self._acquire(self.name)
            assert lock is not None
            self._lock = lock
        except OSError as error:
            raise TraceError(f"cannot use the store {store}: {error.strerror or error}") from error

    def is_running(self, name: str) -> bool:
        """Returns whether another server of this name is running."""
        if name == self.name or not self._path(name).exists():
            return False
        try:
            lock = self._acquire(name)
        except OSError:  # a file of another user
            return True
        if lock is not None:
            lock.release()
            self._forget(name)
        return lock is None

    def shared_key(self) -> bytes:
        """Returns random bytes that are the same for all servers of the store."""
        path, own = self._folder / "key", self._path(self.name).with_suffix(".key")
        try:
            if not path.exists():
                own.touch(mode=0o600)
                own.write_bytes(os.urandom(32))
                with suppress(FileExistsError):
                    os.link(own, path)  # whole, or the one of another server
                own.unlink()
            return path.read_bytes()
        except OSError:  # a file system without links
            return os.urandom(32)

    def release(self) -> None:
        self._lock.release()
        self._forget(self.name)

    def _forget(self, name: str) -> None:
        """Removes the file of a random name, which no server will have again."""
        if RANDOM in name:
            with suppress(OSError):
                self._path(name).unlink()

    def _acquire(self, name: str) -> BaseFileLock | None:
        """Returns the lock of a name, or None if another process holds it."""
        lock = FileLock(self._path(name), mode=0o600, thread_local=False, blocking=False)
        try:
            lock.acquire()
        except Timeout:
            return None
        return lock

    def _path(self, name: str) -> Path:
        return self._folder / f"{blake2b(name.encode(), digest_size=8).hexdigest()}.lock"
