"""What a store needs of a database, so that runs can be in an SQLite file or in PostgreSQL.

The store's statements are written once, in the SQL that both have, with `?` for values. Each is one
transaction. What differs is in `trace/sqlite.py` and `trace/postgres.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

Rows = Sequence[tuple[Any, ...]]


class Database(Protocol):
    """A database with the table `runs`, for use from any thread. Its errors are `StoreError`."""

    name: str  # where it is, for people; without a password
    path: Path | None  # its file, if it is one
    contains: str  # a condition with one value: a text, in lower case, that the texts of a run contain
    brief_facts: str  # an expression: the part of the facts that a brief list shows
    # Columns beside those that all stores have, and their values, from the texts of a run that are searched.
    search_columns: tuple[str, ...]

    def search_values(self, texts: Sequence[str | None]) -> tuple[object, ...]: ...

    def exists(self) -> bool:
        """Returns whether there is something to read. Reading does not create a file."""

    def check(self) -> None:
        """Raises unless the database can be opened and written. Creates it if there is none."""

    def select(self, query: str, values: Sequence[object]) -> Rows: ...

    def execute(self, statement: str, values: Sequence[object]) -> int:
        """Executes a statement in a transaction and returns how many rows it changed."""

    def execute_many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Executes a statement for each row of values, all in one transaction."""

    def close(self) -> None: ...


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class Connection(Generic[C]):
    """A connection that is opened when it is first used, and used by one thread at a time."""

    def __init__(self, connect: Callable[[], C]) -> None:
        self._connect = connect
        self._lock = threading.RLock()
        self._open: C | None = None

    @contextmanager
    def used(self) -> Iterator[C]:
        with self._lock:
            if self._open is None:
                self._open = self._connect()
            yield self._open

    def close(self) -> None:
        with self._lock:
            if self._open is not None:
                self._open.close()
                self._open = None
