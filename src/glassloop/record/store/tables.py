"""The table of the store and its versions. A new store gets the newest version. One of an older version can
be read, and is written only after `upgrade`, which a person asks for (`glassloop runs upgrade`); one of a
newer version is refused.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from glassloop.errors import TraceError
from glassloop.record.messages import NO_TEXT, title_of_text

# An older version that has the store open adds rows without the newer columns.
ADDED = "coalesce(added, created)"
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
    "ALTER TABLE runs ADD COLUMN origin TEXT",  # "server" or "file": its contents are untrusted; else NULL
    "ALTER TABLE runs ADD COLUMN facts TEXT",  # JSON for lists; NULL until it is first asked for
    "CREATE INDEX runs_tree ON runs (tree)",
)
_THIRD = (
    "ALTER TABLE runs ADD COLUMN title TEXT",  # one line; NULL if the prompt has no text that is known
    "ALTER TABLE runs ADD COLUMN talk TEXT",  # the texts of the messages, if the prompt is a conversation
    "ALTER TABLE runs ADD COLUMN added REAL",  # when it was first written, in seconds since 1970
    "ALTER TABLE runs ADD COLUMN writer TEXT",  # the server that computes it now
    "ALTER TABLE runs ADD COLUMN pruned_by TEXT",  # the server that made it and was told to prune its runs
    f"CREATE INDEX runs_added ON runs ({ADDED}, id)",
    "CREATE INDEX runs_pruned_by ON runs (pruned_by) WHERE pruned_by IS NOT NULL",
)
# In both databases: the key whose client made a run, as a digest; NULL for runs without one, such as those of
# the terminal. Lists of one owner, and what is pruned, are found by the indexes.
OWNERS = (
    "ALTER TABLE runs ADD COLUMN owner TEXT",
    f"CREATE INDEX runs_owner ON runs (owner, ({ADDED}), id) WHERE owner IS NOT NULL",
    "DROP INDEX runs_pruned_by",
    f"CREATE INDEX runs_pruned_by ON runs (pruned_by, owner, ({ADDED}), id) WHERE pruned_by IS NOT NULL",
)
_STEPS = (_FIRST, _SECOND, _THIRD, OWNERS)  # what makes each version of the one before
VERSION = len(_STEPS)


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


def prepare(connection: sqlite3.Connection, path: Path) -> int:
    """Creates the table in a new store, or makes one of an older version readable. Returns the version. Takes
    the write lock only for a new store."""
    version = version_of(connection, path)
    if version == 0:
        with transaction(connection):
            version = version_of(connection, path)  # another process may have done it meanwhile
            if version == 0:
                version = _convert(connection, 0)
    if version < VERSION:
        _show_newer_columns(connection)
    return version


def upgrade(connection: sqlite3.Connection, path: Path, keep: Callable[[int], None]) -> int:
    """Brings a store to this version, in one transaction, and returns the version it had. `keep` is called
    with that version before anything changes, while no other process can write."""
    with transaction(connection):
        version = version_of(connection, path)
        if 0 < version < VERSION:
            keep(version)
        if version < VERSION:
            _convert(connection, version)
    return version


def _convert(connection: sqlite3.Connection, version: int) -> int:
    for statements in _STEPS[version:]:
        for statement in statements:
            connection.execute(statement)
    if version < 2:
        _set_trees(connection)
    if version < 3:
        _set_order(connection)
        _set_titles(connection)
    connection.execute(f"PRAGMA user_version = {VERSION}")
    return VERSION


def _show_newer_columns(connection: sqlite3.Connection) -> None:
    """Lets this connection read a store of an older version as one of this version: a temporary view, which
    hides the table of the same name, has the missing columns: empty, or what gives the same order."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as newest:
        _convert(newest, 0)
        wanted = _columns_of(newest)
    missing = [name for name in wanted if name not in _columns_of(connection)]
    others = "".join(f", {'number' if name == 'added' else 'NULL'} AS {name}" for name in missing)
    connection.execute(f"CREATE TEMP VIEW runs AS SELECT *{others} FROM main.runs")


def _columns_of(connection: sqlite3.Connection) -> list[str]:
    return [row[1] for row in connection.execute("PRAGMA main.table_info(runs)")]


def touch(connection: sqlite3.Connection) -> None:
    """Writes something that changes nothing, to find out whether the store can be written."""
    with transaction(connection):
        connection.execute(f"PRAGMA user_version = {VERSION}")


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """Returns the version of a store, 0 for a file without one. Raises if it is newer than this one."""
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


def _set_order(connection: sqlite3.Connection) -> None:
    """Sets when runs of version 2 were added, so that their order stays: by number. Dates in files may be
    any."""
    added, now, added_rows = 0.0, time.time(), []
    for number, created in connection.execute("SELECT number, created FROM runs ORDER BY number"):
        said = created if isinstance(created, float) else now
        added = max(added + 1e-6, min(said, now))
        added_rows.append((added, number))
    connection.executemany("UPDATE runs SET added = ? WHERE number = ?", added_rows)


def _set_titles(connection: sqlite3.Connection) -> None:
    """Sets the titles of runs of version 2 whose prompt is a text."""
    rows = connection.execute("SELECT id, prompt FROM runs WHERE prompt IS NOT NULL").fetchall()
    titles = [(title_of_text(prompt) or NO_TEXT, id) for id, prompt in rows if isinstance(prompt, str)]
    connection.executemany("UPDATE runs SET title = ? WHERE id = ?", titles)
