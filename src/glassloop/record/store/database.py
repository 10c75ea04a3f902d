"""What a store needs of a database, so that runs can be in an SQLite file or in PostgreSQL.

The store's statements are written once, in the SQL that both have, with `?` for values. Each is one
transaction. What differs is in `record/store/sqlite.py` and `record/store/postgres.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from glassloop.errors import TraceError

Rows = Sequence[tuple[Any, ...]]


class SearchStopped(TraceError):
    """A search took longer than it was allowed to, or nobody wants its result any more."""


class Stop:
    """Ends a search after some seconds, or before when nobody wants its result any more. For any thread."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._until = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._cancelled = False
        self._interrupt: Callable[[], object] | None = None
        self._interrupting: threading.Thread | None = None

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return 0.0 if self._cancelled else max(0.0, self._until - time.monotonic())

    def __call__(self) -> bool:
        """Returns whether the search has to end."""
        return self.left <= 0

    def check(self) -> None:
        if self():
            raise SearchStopped(f"the search took longer than {self.seconds:g} s")

    def cancel(self) -> None:
        """Ends the search: its result is not wanted any more."""
        with self._lock:
            self._cancelled = True
            if self._interrupt is not None and self._interrupting is None:
                # It may have to reach a server, for which the caller must not wait.
                self._interrupting = threading.Thread(target=self._interrupt, daemon=True)
                self._interrupting.start()

    @contextmanager
    def interrupting(self, interrupt: Callable[[], object]) -> Iterator[None]:
        """Has `interrupt` called, on a thread, if the search is cancelled inside the `with` statement. It has
        returned at the end, so that it never meets what is done next."""
        with self._lock:
            self._interrupt = interrupt
        try:
            self.check()  # it may have been cancelled before
            yield
        finally:
            with self._lock:
                self._interrupt = None
            if self._interrupting is not None:
                self._interrupting.join()


class Upgrade(NamedTuple):
    """What an upgrade of a store did."""

    before: int  # the version it had
    now: int
    copy: Path | None  # the file in which the store as it was is kept, if it was older and is a file


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

    def search(self, query: str, values: Sequence[object], stop: Stop) -> Rows:
        """Selects rows on a connection of its own, so that no other reader waits. Raises `SearchStopped`."""

    def execute(self, statement: str, values: Sequence[object]) -> int:
        """Executes a statement in a transaction and returns how many rows it changed."""

    def execute_many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Executes a statement for each row of values, all in one transaction."""

    def settle(self) -> None:
        """Is called when nothing has been written for a while."""

    def backup(self, target: Path) -> int:
        """Copies the database into a new file and returns the number of runs. Raises if that is not
        possible."""

    def upgrade(self) -> Upgrade:
        """Brings the database to the newest version."""

    def close(self) -> None: ...


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class DatabaseConnection(Generic[C]):
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
