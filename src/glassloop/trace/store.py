"""The store: runs in one SQLite file, which several processes may use at once and a killed one leaves whole.

A run is a row with the bytes of its `.glass` file and a few columns to find it by. A write is one transaction
in the write-ahead log, so it is there in full or not at all.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from glassloop.errors import TraceError
from glassloop.trace.file import from_bytes, to_bytes, write
from glassloop.trace.run import Run
from glassloop.trace.writer import Writer

_VERSION = 1
_PATIENCE = 30.0  # seconds to wait for another process to finish writing
_SCHEMA = """
CREATE TABLE runs (
    number INTEGER PRIMARY KEY,  -- in the order in which they were added
    id TEXT NOT NULL UNIQUE,
    request TEXT NOT NULL,       -- the first of its samples
    parent TEXT,
    created REAL NOT NULL,
    model TEXT NOT NULL,
    prompt TEXT,
    text TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    finish_reason TEXT,
    seed TEXT NOT NULL,          -- up to 64 bits, which SQLite's integers do not hold
    data BLOB NOT NULL
);
CREATE INDEX runs_parent ON runs (parent);
CREATE INDEX runs_request ON runs (request);
"""
_SHOWN = "id, created, model, prompt, text, tokens, finish_reason, seed, parent, length(data)"


@dataclass(frozen=True)
class Entry:
    """What the list of runs tells of one."""

    id: str
    created: float
    model: str
    prompt: str | None
    text: str
    tokens: int
    finish_reason: str | None
    seed: int
    parent: str | None
    size: int  # bytes

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def default_path() -> Path:
    """GLASSLOOP_STORE, else $XDG_DATA_HOME/glassloop/runs.db, else ~/.local/share/glassloop/runs.db."""
    if named := os.environ.get("GLASSLOOP_STORE"):
        return Path(named).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME", "")
    base = Path(data) if Path(data).is_absolute() else Path.home() / ".local" / "share"
    return base / "glassloop" / "runs.db"


class Store:
    """May be used from any thread. The file is made when the first run is added."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = default_path() if path is None else Path(path)
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._writer = Writer(self._add_all)

    @classmethod
    def of(cls, store: Store | str | Path | bool | None) -> Store | None:
        """The store that a caller means: none, the user's own, the one at a path, or this."""
        if store is None or store is False:
            return None
        if store is True:
            return cls()
        return store if isinstance(store, Store) else cls(store)

    # ── writing ────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, *runs: Run) -> None:
        """Keep these; they are on disk when this returns. One that was there already is replaced."""
        self._add_all(runs)

    def put(self, run: Run) -> None:
        """Keep it soon: a thread of the store's own writes it, with others that have come meanwhile."""
        self._writer.put(run)

    def flush(self) -> None:
        """Wait until all that was put is written. What went wrong on the way is raised here."""
        self._writer.flush()

    def remove(self, *names: str) -> int:
        """Forget these runs; how many there were. Their forks stay, each whole in itself."""
        ids = [self._id(name) for name in names]
        with self._transaction() as connection:
            return sum(connection.execute("DELETE FROM runs WHERE id = ?", (each,)).rowcount for each in ids)

    def prune(self, keep: int) -> int:
        """Forget all but the newest so many; how many were forgotten."""
        if keep < 0:
            raise TraceError(f"keep is {keep}; a number of runs from 0 up is expected")
        with self._transaction() as connection:
            newest = "SELECT number FROM runs ORDER BY number DESC LIMIT ?"
            return connection.execute(f"DELETE FROM runs WHERE number NOT IN ({newest})", (keep,)).rowcount

    # ── reading ────────────────────────────────────────────────────────────────────────────────────────────

    def list(self, limit: int | None = None) -> Sequence[Entry]:
        """The newest first."""
        rows = self._select(
            f"SELECT {_SHOWN} FROM runs ORDER BY number DESC LIMIT ?", -1 if limit is None else limit
        )
        names = [field.name for field in fields(Entry)]
        return [Entry(**{**dict(zip(names, row, strict=True)), "seed": int(row[7])}) for row in rows]

    def get(self, name: str) -> Run:
        """A run by its id, by the beginning of it if no other begins so, or the `last`; with what is kept of
        its family (`run.tree()`)."""
        own = self._id(name)
        family = self._family(own)
        return next(run for run in family if run.id == own)

    def export(self, name: str, path: str | Path, *, tree: bool = False) -> None:
        """Write a run, or with `tree` its whole family, as a `.glass` file."""
        run = self.get(name)
        write(path, run.tree().from_run(run) if tree else [run])

    def __len__(self) -> int:
        return int(self._select("SELECT count(*) FROM runs")[0][0]) if self.path.exists() else 0

    def close(self) -> None:
        self.flush()
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    # ── inside ─────────────────────────────────────────────────────────────────────────────────────────────

    def _add_all(self, runs: Iterable[Run]) -> None:
        rows = [_row(run) for run in runs]  # packed before anybody has to wait for us
        marks = ", ".join("?" * 11)
        with self._transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO runs (id, request, parent, created, model, prompt, text, tokens,"
                f" finish_reason, seed, data) VALUES ({marks})",
                rows,
            )

    def _id(self, name: str) -> str:
        if name == "last":
            found = self._select("SELECT id FROM runs ORDER BY number DESC LIMIT 1")
            if not found:
                raise TraceError(f"there is no run in {self.path} yet")
            return str(found[0][0])
        # A beginning is a range: no wildcard in it can mean anything else.
        found = self._select(
            "SELECT id FROM runs WHERE id >= ? AND id < ? LIMIT 3", name, name + "\U0010ffff"
        )
        ids = [str(row[0]) for row in found]
        if name in ids:
            return name
        if not ids or not name:
            raise TraceError(f"there is no run {name!r} in {self.path}; 'glassloop runs list' shows them")
        if len(ids) > 1:
            raise TraceError(f"several runs begin with {name!r}: {', '.join(ids[:2])} …")
        return ids[0]

    def _family(self, own: str) -> Sequence[Run]:
        """Everything that hangs together with a run by parents, forks and samples."""
        rows = self._select(
            """WITH RECURSIVE kin(id, request, parent) AS (
                SELECT id, request, parent FROM runs WHERE id = ?
                UNION
                SELECT runs.id, runs.request, runs.parent FROM runs, kin
                WHERE runs.id = kin.parent OR runs.parent = kin.id OR runs.request = kin.request
            ) SELECT runs.request, runs.data FROM runs JOIN kin ON kin.id = runs.id ORDER BY runs.number""",
            own,
        )
        runs = [from_bytes(data, f"a run in {self.path}")[0] for _, data in rows]
        by_id = {run.id: run for run in runs}
        requests = [request for request, _ in rows]
        for run, request in zip(runs, requests, strict=True):
            run.samples = [each for each, theirs in zip(runs, requests, strict=True) if theirs == request]
            run.above = by_id.get(run.parent or "")
            if run.above is not None:
                run.above.children.append(run)
        return runs

    def _select(self, query: str, *values: object) -> Sequence[tuple[Any, ...]]:
        if not self.path.exists():
            return []
        with self._errors(), self._lock:
            return self._open().execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._errors(), self._lock:
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            connection = sqlite3.connect(
                self.path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
            )
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                _prepare(connection, self.path)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise TraceError(f"cannot use the store {self.path}: {error}") from error


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """A new file gets its table; two processes may come with the same idea."""
    connection.execute("BEGIN IMMEDIATE")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {_VERSION}")
    connection.execute("COMMIT")
    if version > _VERSION:
        raise TraceError(
            f"the store {path} is of version {version}; this glassloop uses up to {_VERSION}: update it"
        )


def _row(run: Run) -> tuple[object, ...]:
    request = run.samples[0].id if run.samples else run.id
    text = (run.id, request, run.parent, run.created, run.model, run.prompt, run.text)
    return (*text, len(run.tokens), run.finish_reason, str(run.seed), to_bytes([run]))
