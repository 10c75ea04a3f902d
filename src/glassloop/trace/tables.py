"""The table of the store and its versions. A store of an older version is brought to this one in a single
transaction when it is opened; one of a newer version is refused.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from glassloop.errors import TraceError

VERSION = 2
_FIRST = (
    """CREATE TABLE runs (
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
)""",
    "CREATE INDEX runs_parent ON runs (parent)",
    "CREATE INDEX runs_request ON runs (request)",
)
_SECOND = (
    "ALTER TABLE runs ADD COLUMN tree TEXT",  # the runs that a server shows together
    "ALTER TABLE runs ADD COLUMN name TEXT",  # of a strategy
    "ALTER TABLE runs ADD COLUMN origin TEXT",  # "server": a server wrote it, and may remove it; else NULL
    "ALTER TABLE runs ADD COLUMN facts TEXT",  # JSON: what lists show of it; NULL where it was not made yet
    "CREATE INDEX runs_tree ON runs (tree)",
)


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Brings a store to this version. Takes the write lock only if there is something to do; two processes
    may come with the same idea."""
    if _version(connection, path) == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection, path)
        for statement in (*(_FIRST if version < 1 else ()), *(_SECOND if version < 2 else ())):
            connection.execute(statement)
        if version < VERSION:
            _grow_trees(connection)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def touch(connection: sqlite3.Connection) -> None:
    """Writes something that changes nothing, to see whether the store can be written."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def roll_back(connection: sqlite3.Connection) -> None:
    """Ends a transaction that failed; a full disk may have ended it already."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _version(connection: sqlite3.Connection, path: Path) -> int:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        raise TraceError(
            f"the store {path} is of version {version}; this glassloop uses up to {VERSION}: update it"
        )
    return version


def _grow_trees(connection: sqlite3.Connection) -> None:
    """Runs of version 1 have no tree: it is the request of the run from which they all were forked."""
    rows = connection.execute("SELECT id, request, parent FROM runs").fetchall()
    parents = {id: parent for id, _, parent in rows}
    requests = {id: request for id, request, _ in rows}
    trees: dict[str, str] = {}
    for id in requests:
        path = {id: None}  # in order, and quick to look into: parents may go in a circle
        while (at := next(reversed(path))) not in trees:
            above = parents[at]
            if above not in requests or above in path:
                break
            path[above] = None
        trees |= dict.fromkeys(path, trees.get(at, requests[at]))
    rows = [(tree, id) for id, tree in trees.items()]
    connection.executemany("UPDATE runs SET tree = ? WHERE id = ?", rows)
