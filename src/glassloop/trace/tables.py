"""The table of the store and its versions. A store of an older version is converted in a single transaction
when it is opened; one of a newer version is refused.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glassloop.errors import TraceError

VERSION = 2
_FIRST = (
    """CREATE TABLE runs (
    number INTEGER PRIMARY KEY,  -- in the order in which they were added
    id TEXT NOT NULL UNIQUE,
    request TEXT NOT NULL,       -- the id of the first of its samples
    parent TEXT,
    created REAL NOT NULL,
    model TEXT NOT NULL,
    prompt TEXT,
    text TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    finish_reason TEXT,
    seed TEXT NOT NULL,          -- up to 64 bits, which SQLite's integers do not hold
    data BLOB NOT NULL
)""",
    "CREATE INDEX runs_parent ON runs (parent)",
    "CREATE INDEX runs_request ON runs (request)",
)
_SECOND = (
    "ALTER TABLE runs ADD COLUMN tree TEXT",  # the same for all runs that a server shows together
    "ALTER TABLE runs ADD COLUMN name TEXT",  # of a strategy
    "ALTER TABLE runs ADD COLUMN origin TEXT",  # "server": a server wrote it, and may remove it; else NULL
    "ALTER TABLE runs ADD COLUMN facts TEXT",  # JSON for lists; NULL until it is first asked for
    "CREATE INDEX runs_tree ON runs (tree)",
)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Takes the write lock, and commits what is done inside; rolls back if that raises."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk may have ended it already
            connection.execute("ROLLBACK")
        raise


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Brings a store to this version. Takes the write lock only if there is something to do."""
    if _version(connection, path) == VERSION:
        return
    with transaction(connection):
        version = _version(connection, path)  # another process may have done it meanwhile
        for statement in (*(_FIRST if version < 1 else ()), *(_SECOND if version < 2 else ())):
            connection.execute(statement)
        if version < VERSION:
            _set_trees(connection)
            connection.execute(f"PRAGMA user_version = {VERSION}")


def touch(connection: sqlite3.Connection) -> None:
    """Writes something that changes nothing, to find out whether the store can be written."""
    with transaction(connection):
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _version(connection: sqlite3.Connection, path: Path) -> int:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        raise TraceError(
            f"the store {path} is of version {version}; this glassloop uses up to {VERSION}: update it"
        )
    return version


def _set_trees(connection: sqlite3.Connection) -> None:
    """Sets the tree of runs of version 1: the request of the first run that they descend from."""
    rows = connection.execute("SELECT id, request, parent FROM runs").fetchall()
    parents = {id: parent for id, _, parent in rows}
    requests = {id: request for id, request, _ in rows}
    trees: dict[str, str] = {}
    for id in requests:
        path = {id: None}  # ordered, and quick to search: parents may form a circle
        while (at := next(reversed(path))) not in trees:
            above = parents[at]
            if above not in requests or above in path:
                break
            path[above] = None
        trees |= dict.fromkeys(path, trees.get(at, requests[at]))
    connection.executemany(
        "UPDATE runs SET tree = ? WHERE id = ?", [(tree, id) for id, tree in trees.items()]
    )
