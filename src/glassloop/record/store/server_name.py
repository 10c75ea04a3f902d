"""The names of the servers that use a store, and which of them are running.

A server is named after the address that it listens on, also after a restart, so that it finds the runs that
it made. Beside a store in a file it holds a lock of the operating system on a file of that name, which ends
with the process in any case. In PostgreSQL it holds an advisory lock of the database, which ends with its
connection: when the process is killed, or when its machine no longer answers. Other programs that use the
store need no name.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from filelock import BaseFileLock, FileLock, Timeout

from glassloop.errors import StoreError, TraceError
from glassloop.record.store.database import DatabaseConnection
from glassloop.record.store.postgres import Postgres, is_postgres

if TYPE_CHECKING:
    import psycopg

RANDOM = "#"  # what a random number in a name begins with
_PATIENCE = 5.0  # seconds
_EVERY = 1.0  # seconds between tests of the connection
# Seconds after a start of the database in which every server counts as running: they take their locks again.
_GRACE = 6.0


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
    return PostgresName(str(store), address) if is_postgres(store) else ServerName(Path(store), address)


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
        path, key_link = self._folder / "key", self._path(self.name).with_suffix(".key")
        try:
            if not path.exists():
                key_link.touch(mode=0o600)
                key_link.write_bytes(os.urandom(32))
                with suppress(FileExistsError):
                    os.link(key_link, path)  # whole, or the one of another server
                key_link.unlink()
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


class PostgresName:
    """The name of a server among those that use a database, held until `release`: see `ServerName`. A thread
    takes the lock again after the connection was lost."""

    def __init__(self, url: str, address: str | None) -> None:
        self._database = Postgres(url, _PATIENCE)
        self._holder = DatabaseConnection(self._connect)
        self._asker = DatabaseConnection(self._database.connect)
        self.name = address or "server"
        if address is None or not self._take():
            self.name += RANDOM + os.urandom(6).hex()
            self._take()
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._hold, name="glassloop server name", daemon=True)
        self._thread.start()

    def is_running(self, name: str) -> bool:
        """Returns whether another server of this name is running, or may be."""
        if name == self.name:
            return False
        high, low = divmod(_key(name) % (1 << 64), 1 << 32)
        query = """SELECT EXISTS (
            SELECT 1 FROM pg_catalog.pg_locks
            JOIN pg_catalog.pg_database ON pg_database.oid = pg_locks.database
            WHERE datname = current_database() AND locktype = 'advisory' AND granted
            AND classid::bigint = %s AND objid::bigint = %s AND objsubid = 1
        ) OR clock_timestamp() < pg_postmaster_start_time() + make_interval(secs => %s)"""
        return bool(self._ask(query, high, low, _GRACE)[0])

    def shared_key(self) -> bytes:
        """Returns random bytes that are the same for all servers of the store."""
        insert = "INSERT INTO settings VALUES ('key', %s) ON CONFLICT (name) DO NOTHING RETURNING value"
        self._ask(insert, os.urandom(32).hex())
        return bytes.fromhex(str(self._ask("SELECT value FROM settings WHERE name = 'key'")[0]))

    def release(self) -> None:
        self._released.set()
        self._thread.join()
        self._holder.close()
        self._asker.close()

    def _ask(self, query: Any, *values: object) -> tuple[Any, ...]:
        """Returns the first row of a query's result, or an empty one."""
        return self._database.attempt(
            self._asker, lambda connection: connection.execute(query, values).fetchone() or ()
        )

    def _take(self) -> bool:
        """Returns whether the lock of the name is held now."""
        query = "SELECT pg_try_advisory_lock(%s)"
        return self._database.attempt(
            self._holder,
            lambda connection: bool(connection.execute(query, (_key(self.name),)).fetchone() == (True,)),
        )

    def _connect(self) -> psycopg.Connection[Any]:
        connection = self._database.connect()
        connection.execute("SET application_name = 'glassloop server'")
        return connection

    def _hold(self) -> None:
        """Tests the connection now and then. The lock is taken again, as often as it is held: the lock of a
        session is counted, and ends with the session."""
        held: object = None
        while not self._released.wait(_EVERY):
            try:
                with self._holder.used() as connection:
                    is_new = connection is not held
                    if not is_new:
                        connection.execute("SELECT 1")
                if is_new and self._take():
                    held = connection
            except StoreError:
                continue
            except Exception:  # the connection was lost
                self._holder.close()


def _key(name: str) -> int:
    """Returns the number of the advisory lock for a name."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8, person=b"glassloop").digest(), signed=True)
