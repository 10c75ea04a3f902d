"""A store's database in one SQLite file, which several processes may use at once.

A write is one transaction in the write-ahead log, so a process that is killed leaves no half-written run, and
reading never waits for a writer.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from errno import ENOENT
from pathlib import Path

from glassloop.errors import StoreError, TraceError
from glassloop.record.store.backup import copy_database
from glassloop.record.store.database import DatabaseConnection, Rows, Stop, Upgrade
from glassloop.record.store.listing import contains
from glassloop.record.store.tables import VERSION, prepare, touch, transaction, upgrade

_STEPS = 200  # of SQLite's machine, about ten rows, after which a search looks whether it has to stop


class SQLite:
    """An SQLite file, created when it is first written. `patience` is how many seconds a write waits for
    other processes."""

    contains = "contains(?, title, prompt, talk, text)"
    brief_facts = """CASE WHEN json_valid(facts) THEN json_object(
        'sampling', json_object('beam_width', json_extract(facts, '$.sampling.beam_width')),
        'prompt_ids', CASE WHEN title IS NULL THEN json_extract(facts, '$.prompt_ids') END,
        'diffusion', json_type(facts, '$.diffusion')
    ) END"""
    search_columns: tuple[str, ...] = ()

    def __init__(self, path: Path, patience: float, makes_folder: bool = False) -> None:
        self._path = path
        self._makes_folder = makes_folder
        self._version = VERSION
        self.path: Path | None = path
        self.name = str(path)
        self._patience = patience
        # Two connections, so that reads do not wait while a write waits for another process.
        self._reader = DatabaseConnection(self._connect)
        self._writer = DatabaseConnection(self._connect)
        self._searcher = DatabaseConnection(self._connect)

    def search_values(self, texts: Sequence[str | None]) -> tuple[object, ...]:
        return ()

    def exists(self) -> bool:
        return self._path.exists()

    def check(self) -> None:
        with self._errors(), self._writer.used() as connection:
            self._check_version()
            touch(connection)

    def select(self, query: str, values: Sequence[object]) -> Rows:
        with self._errors(), self._reader.used() as connection:
            return connection.execute(query, values).fetchall()

    def search(self, query: str, values: Sequence[object], stop: Stop) -> Rows:
        with self._errors(), self._searcher.used() as connection:
            connection.set_progress_handler(lambda: int(stop()), _STEPS)
            try:
                stop.check()
                return connection.execute(query, values).fetchall()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                    stop.check()
                raise
            finally:
                connection.set_progress_handler(None, 0)

    def execute(self, statement: str, values: Sequence[object]) -> int:
        with self._transaction() as connection:
            return connection.execute(statement, values).rowcount

    def execute_many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        with self._transaction() as connection:
            connection.executemany(statement, rows)

    def settle(self) -> None:
        """Copies what is in the write-ahead log into the file itself, as far as no reader still needs it."""
        with suppress(StoreError), self._errors(), self._writer.used() as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def backup(self, target: Path) -> int:
        if not self.exists():
            raise TraceError(f"there is no store {self.name} yet")
        with self._errors(), self._reader.used() as connection:
            return copy_database(connection, target)

    def upgrade(self) -> Upgrade:
        if not self.exists():
            raise TraceError(f"there is no store {self.name} yet")
        copy: Path | None = None

        def keep(version: int) -> None:
            nonlocal copy
            copy = self._path.with_name(f"{self._path.name}.v{version}")
            with closing(self._open()) as reading:  # the other connection is in a transaction
                copy_database(reading, copy)

        with self._errors(), closing(self._open()) as connection:
            before = upgrade(connection, self._path, keep)
        self.close()
        return Upgrade(before, VERSION, copy)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
        self._searcher.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if self._version < VERSION:  # it may have been upgraded meanwhile
            self.close()
        with self._errors(), self._writer.used() as connection:
            self._check_version()
            with transaction(connection):
                yield connection

    def _check_version(self) -> None:
        """Raises if the store can only be read."""
        if self._version < VERSION:
            reason = f"it is of version {self._version}, and this glassloop writes version {VERSION}"
            remedy = "'glassloop runs upgrade' upgrades it and keeps a copy"
            raise StoreError(f"cannot write to the store {self.name}: {reason}; {remedy}", reason)

    def _connect(self) -> sqlite3.Connection:
        self._create()
        connection = self._open()
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            self._version = prepare(connection, self._path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _create(self) -> None:
        """Creates a file that only its owner can read. SQLite gives the files beside it the same mode."""
        folder = self._path.parent
        if self._makes_folder:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        elif not folder.is_dir():
            raise FileNotFoundError(ENOENT, f"there is no folder {folder}")
        with suppress(FileExistsError):
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=self._patience, isolation_level=None, check_same_thread=False
        )
        connection.create_function("contains", -1, contains, deterministic=True)
        return connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            reason = str(getattr(error, "strerror", None) or error)
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            raise StoreError(
                f"cannot use the store {self.name}: {reason}",
                reason,
                busy=code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED),
                full=code == sqlite3.SQLITE_FULL,
            ) from error
