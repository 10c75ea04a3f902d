"""Notes: small JSON documents beside the runs of a store, such as what a request said that no run records.

A note belongs to an owner, as a run does, and may be a part of another note, with which it is removed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from glassloop.record.store.database import Database

# In both databases, and in a store of this version that has none yet: versions that know no notes ignore it.
_TABLE = """CREATE TABLE IF NOT EXISTS notes (
    id TEXT PRIMARY KEY,
    parent TEXT,
    owner TEXT NOT NULL,
    added DOUBLE PRECISION NOT NULL,
    data TEXT NOT NULL
)"""
_INDEX = "CREATE INDEX IF NOT EXISTS notes_parent ON notes (parent, added)"


class Note(NamedTuple):
    id: str
    parent: str | None
    owner: str
    added: float  # seconds since 1970, by which the parts of a note are ordered
    data: dict[str, Any]


class NoteTable:
    """The notes in a store's database. With an owner, the notes of all others do not exist."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self) -> None:
        for statement in (_TABLE, _INDEX):
            self._database.execute(statement, ())

    def put(self, notes: Sequence[Note]) -> None:
        """Writes notes; one with the same id, parent and owner is replaced."""
        rows = [(*note[:4], json.dumps(note.data, separators=(",", ":"))) for note in notes]
        self._database.execute_many(
            "INSERT INTO notes (id, parent, owner, added, data) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET data = excluded.data WHERE notes.owner = excluded.owner",
            rows,
        )

    def get(self, id: str, owner: str | None = None) -> Note | None:
        notes = self._select("id = ?", (id,), owner, 1)
        return notes[0] if notes else None

    def parts(self, parent: str, most: int, owner: str | None = None) -> list[Note]:
        """Returns the parts of a note, the oldest first."""
        return self._select("parent = ?", (parent,), owner, most)

    def remove(self, id: str, owner: str | None = None) -> int:
        """Deletes a note with its parts, and returns how many there were."""
        condition = "" if owner is None else " AND owner = ?"
        values = () if owner is None else (owner,)
        self._database.execute(f"DELETE FROM notes WHERE parent = ?{condition}", (id, *values))
        return self._database.execute(f"DELETE FROM notes WHERE id = ?{condition}", (id, *values))

    def prune(self) -> int:
        """Deletes notes about runs that the store does not have any more, and returns how many."""
        condition = "id LIKE 'resp%' AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = substr(notes.id, 6))"
        return self._database.execute(f"DELETE FROM notes WHERE {condition}", ())

    def _select(self, condition: str, values: Sequence[object], owner: str | None, most: int) -> list[Note]:
        if owner is not None:
            condition, values = f"{condition} AND owner = ?", (*values, owner)
        query = (
            f"SELECT id, parent, owner, added, data FROM notes WHERE {condition} ORDER BY added, id LIMIT ?"
        )
        rows = self._database.select(query, (*values, most))
        return [
            Note(str(id), parent, str(of), float(added), json.loads(data))
            for id, parent, of, added, data in rows
        ]
