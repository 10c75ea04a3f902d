"""Which runs of a store go when there are too many: the oldest, and of several owners the oldest of the one
that has the most, so that nobody pushes out the runs of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassloop.record.store.database import Database
from glassloop.record.store.listing import ORDER
from glassloop.record.store.tables import ADDED

ALL = 1 << 62  # rows, as a limit


def prune_all(database: Database, keep: int) -> int:
    """Deletes all runs except the newest `keep`, and returns how many."""
    return _delete_oldest(database, "1 = 1", (), keep)


def prune_shares(database: Database, keep: int, server: str) -> int:
    """Deletes all but `keep` of the runs that a server made while it was told to prune, and returns how many.

    Each owner keeps its newest runs, as many as any other who has more than that. Each statement finds its
    rows by an index, and has the same effect if it is executed twice.
    """
    query = "SELECT owner, count(*) FROM runs WHERE pruned_by = ? GROUP BY owner"
    counts = {owner: int(count) for owner, count in database.select(query, (server,))}
    level = _level(list(counts.values()), keep)
    spare = keep - sum(min(count, level) for count in counts.values())
    conditions: dict[str | None, tuple[str, tuple[str, ...]]] = {}
    for owner, count in counts.items():
        if count > level:
            if owner is None:
                conditions[owner] = "pruned_by = ? AND owner IS NULL", (server,)
            else:
                conditions[owner] = "pruned_by = ? AND owner = ?", (server, owner)
    # The owners whose next run is the newest keep one more, as far as there is room.
    following: list[tuple[tuple[Any, ...], str | None]] = []
    for owner, (condition, values) in conditions.items() if spare else ():
        query = f"SELECT {ADDED}, id FROM runs WHERE {condition} {ORDER} LIMIT 1 OFFSET ?"
        following += [(tuple(row), owner) for row in database.select(query, (*values, level))]
    following.sort(key=lambda run: run[0], reverse=True)
    one_more = {owner for _, owner in following[:spare]}
    return sum(
        _delete_oldest(database, condition, values, level + (owner in one_more))
        for owner, (condition, values) in conditions.items()
    )


def _level(counts: Sequence[int], keep: int) -> int:
    """Returns the most runs that each owner keeps, of those who have `counts`, if `keep` stay in all."""
    left = keep
    for place, count in enumerate(sorted(counts)):
        share = left // (len(counts) - place)
        if count > share:
            return share
        left -= count
    return max(counts, default=0)


def _delete_oldest(database: Database, condition: str, values: Sequence[object], keep: int) -> int:
    """Deletes the runs of a condition except the newest."""
    oldest = f"SELECT number FROM runs WHERE {condition} {ORDER} LIMIT {ALL} OFFSET ?"
    return database.execute(f"DELETE FROM runs WHERE number IN ({oldest})", (*values, keep))
