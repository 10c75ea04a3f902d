"""The notes of clients: what requests said that their runs do not record, and conversations. They are kept
where the runs are, under the key of the client that made them; for any other key they do not exist.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from glassloop.record.run_name import RESPONSE
from glassloop.record.store.notes import Note
from glassloop.server.http.clients import owner_of_runs
from glassloop.server.http.errors import invalid
from glassloop.server.runs.index import RunIndex

MOST_PARTS = 1000  # of one note
_MOST_SIZE = 1 << 20  # characters of one note as JSON
_MOST_HELD = 64 << 20  # characters of all notes in memory, where there is no store


def note_of(run_id: str) -> str:
    """Returns the id of the note about a run."""
    return f"{RESPONSE}{run_id}"


class Notes:
    """Notes by id, in the storage of the runs or, without one, in memory."""

    def __init__(self, runs: RunIndex) -> None:
        self._runs = runs
        self._held: dict[str, Note] = {}  # oldest first; without a storage
        self._sizes: dict[str, int] = {}  # of these
        self._size_of_owner: Counter[str] = Counter()
        self._last = 0.0

    async def put(self, *notes: tuple[str, dict[str, Any]], parent: str | None = None, field: str) -> None:
        """Writes notes, each an id and its content, in this order. An error about their size names
        `field`."""
        made = []
        for id, data in notes:
            size = len(json.dumps(data))
            if size > _MOST_SIZE:
                message = f"has {size} characters as JSON; at most {_MOST_SIZE} are kept"
                raise invalid(field, f"{field} {message}")
            self._last = max(time.time(), self._last + 1e-6)
            made.append(Note(id, parent, owner_of_runs(), self._last, data))
        if self._runs.storage is not None:
            await self._runs.storage.put_notes(made)
            return
        for note in made:
            self._hold(note)

    async def get(self, id: str) -> Note | None:
        if self._runs.storage is not None:
            return await self._runs.storage.note(id, self._runs.viewer)
        note = self._held.get(id)
        return note if note is not None and self._may_see(note) else None

    async def parts(self, parent: str) -> Sequence[Note]:
        """Returns the parts of a note, the oldest first."""
        if self._runs.storage is not None:
            return await self._runs.storage.parts_of_note(parent, MOST_PARTS + 1, self._runs.viewer)
        return [note for note in self._held.values() if note.parent == parent and self._may_see(note)]

    async def remove(self, id: str) -> bool:
        """Removes a note with its parts. Returns whether there was one."""
        if self._runs.storage is not None:
            return await self._runs.storage.remove_note(id, self._runs.viewer)
        note = self._held.get(id)
        if note is None or not self._may_see(note):
            return False
        self._drop(id)
        return True

    def _may_see(self, note: Note) -> bool:
        return self._runs.viewer in (None, note.owner)

    def _hold(self, note: Note) -> None:
        """Keeps a note in memory. Where there are too many, the oldest of the owner that has most go."""
        before = self._held.get(note.id)
        if before is not None:
            if not self._may_see(before):
                return
            note = note._replace(parent=before.parent, added=before.added)
        self._resize(note, len(json.dumps(note.data)))
        self._held[note.id] = note
        while self._size_of_owner.total() > _MOST_HELD:
            owner = self._size_of_owner.most_common(1)[0][0]
            self._drop(next(each.id for each in self._held.values() if each.owner == owner))

    def _resize(self, note: Note, size: int) -> None:
        self._size_of_owner[note.owner] += size - self._sizes.get(note.id, 0)
        self._sizes[note.id] = size

    def _drop(self, id: str) -> None:
        for each in [note for note in self._held.values() if id in (note.id, note.parent)]:
            self._resize(each, 0)
            del self._held[each.id], self._sizes[each.id]
