"""The names of the servers that share a store in PostgreSQL.

A server holds an advisory lock of the database, which ends with its connection: when the process is killed,
or when its machine no longer answers. A thread takes the lock again after the connection was lost.
"""

from __future__ import annotations

import os
import threading
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from glassloop.errors import StoreError
from glassloop.record.store.database import DatabaseConnection
from glassloop.record.store.postgres import Postgres
from glassloop.record.store.server_name import RANDOM

if TYPE_CHECKING:
    import psycopg

_PATIENCE = 5.0  # seconds
_EVERY = 1.0  # seconds between tests of the connection
# Seconds after a start of the database in which every server counts as running: they take their locks again.
_GRACE = 6.0


class PostgresName:
    """The name of a server among those that use a database, held until `release`: see `ServerName`."""

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
