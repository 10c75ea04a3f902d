"""The index of runs: those that are being computed, and the latest ones that have ended.

It is in memory. With a `RunStorage` runs outlive the process: it is given every run that begins or ends, and
asked for those that are not in memory. All methods are for the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from glassloop.server.errors import APIError
from glassloop.server.runs.state import RunState, TreeState
from glassloop.server.runs.storage import RunStorage
from glassloop.trace.entry import Kept

_MOST_REMOVED = 10_000  # ids of removed runs that are remembered


class RunIndex:
    def __init__(self, keep: int, storage: RunStorage | None = None) -> None:
        self.keep = keep
        self.storage = storage
        self._states: dict[str, RunState] = {}  # oldest first
        self._trees: dict[str, TreeState] = {}
        # A read of the storage that began before a removal must not bring the run back.
        self._removed: dict[str, None] = {}

    @property
    def states(self) -> Sequence[RunState]:
        """The runs in memory, oldest first."""
        return list(self._states.values())

    def running(self) -> list[RunState]:
        return [state for state in self._states.values() if state.request is not None]

    def add(self, state: RunState) -> None:
        self._insert(state)
        if self.storage is not None:
            self.storage.begin(state)  # again where it goes on after a pause

    def _insert(self, state: RunState) -> None:
        self._states[state.run.id] = state
        self._trees[state.tree.id] = state.tree
        state.tree.states[state.run.id] = state

    # ── finding ────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, id: str) -> RunState:
        state = await self.find(id)
        if state is None:
            raise _no_run(id)
        return state

    async def find(self, id: str) -> RunState | None:
        """Returns a run from memory or from the storage."""
        state = self._states.get(id)
        if state is not None or self.storage is None:
            return state
        stored = await self.storage.get(id)
        if stored is None or id in self._removed:
            return None
        if id not in self._states:  # another request may have brought it meanwhile
            tree = self._trees.get(stored.tree) or TreeState(stored.tree)
            state = RunState(stored.run, tree, stored.name)
            state.created = stored.run.created
            self._insert(state)
            self.trim()
        return self._states.get(id)

    async def tree(self, id: str) -> TreeState:
        tree = self._trees.get(id)
        if tree is None and self.storage is not None:
            for kept in await self.storage.list(1, id):
                state = await self.find(kept.entry.id)
                tree = None if state is None else state.tree
        if tree is None:
            raise APIError(404, f"there is no tree {id[:40]!r}", code="no_such_tree")
        return tree

    async def newest(self, limit: int, tree: str | None = None) -> list[RunState | Kept]:
        """Returns the newest runs, of one tree or of all; those in the storage by their columns alone."""
        kept = [] if self.storage is None else await self.storage.list(min(limit, self.keep), tree)
        found: dict[str, tuple[float, RunState | Kept]] = {
            each.entry.id: (each.entry.created, each) for each in kept if each.entry.id not in self._removed
        }
        for state in self._states.values():
            if tree is None or state.tree.id == tree:
                found[state.run.id] = state.created, state
        ordered = sorted(found.values(), key=lambda each: -each[0])
        return [each for _, each in ordered[:limit]]

    # ── ending ─────────────────────────────────────────────────────────────────────────────────────────────

    def ended(self, state: RunState) -> None:
        # A run that was forgotten while it was computed is not stored.
        if self.storage is not None and self._states.get(state.run.id) is state:
            self.storage.put(state)
        self.trim()

    def trim(self) -> None:
        """Forgets the oldest runs that no request needs any more."""
        over = len(self._states) - self.keep
        if over <= 0:
            return
        for state in self.states:
            if over <= 0:
                break
            if state.request is None and not state.users:
                self.forget(state)
                over -= 1

    def forget(self, state: RunState, for_good: bool = False) -> None:
        """Takes a run out of memory; with `for_good` out of the storage too, soon."""
        self._states.pop(state.run.id, None)
        state.tree.forget(state)
        if not state.tree.states:
            self._trees.pop(state.tree.id, None)
            state.tree.wake()
        if for_good:
            self._note_removed(state.run.id)
            if self.storage is not None:
                self.storage.forget(state.run.id)

    async def remove(self, id: str) -> None:
        """Removes a run everywhere. It is gone when this returns, and still there if this fails."""
        self._check_ended(id)
        stored = False if self.storage is None else await self.storage.remove(id)
        self._check_ended(id)  # it may have been continued meanwhile, and is then in the storage again
        state = self._states.get(id)
        if state is None and not stored:
            raise _no_run(id)
        self._note_removed(id)
        if state is not None:
            self.forget(state)

    def _check_ended(self, id: str) -> None:
        state = self._states.get(id)
        if state is not None and state.request is not None:
            raise APIError(409, f"run {id} is {state.status}; stop it first", code="still_running")

    def _note_removed(self, id: str) -> None:
        self._removed[id] = None
        if len(self._removed) > _MOST_REMOVED:
            del self._removed[next(iter(self._removed))]


def _no_run(id: str) -> APIError:
    return APIError(404, f"there is no run {id[:40]!r}; it may have been forgotten", code="no_such_run")
