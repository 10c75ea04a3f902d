"""The index of runs: those that are being computed, and the latest ones that have ended.

It is in memory. With a `RunStorage` runs outlive the process: it is given every run that begins or ends, and
asked for those that are not in memory. All methods are for the event loop's thread.

Every route finds runs here. Where keys are kept apart, the methods that find, list and remove know only the
runs of the key whose request is in hand: for any other, they do not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from glassloop.record.run import Run
from glassloop.record.store.database import Stop
from glassloop.record.store.entry import KeptRun
from glassloop.record.store.listing import Listing
from glassloop.server.http.clients import owner_of_runs
from glassloop.server.http.errors import APIError
from glassloop.server.operation.workers import Workers
from glassloop.server.runs.state import ELSEWHERE, RunState, TreeState
from glassloop.server.runs.storage import RunStorage, answered

_SEARCH = 10.0  # seconds that a search may take
_MOST_REMOVED = 10_000  # ids of removed runs that are remembered


class RunIndex:
    def __init__(
        self, keep: int, storage: RunStorage | None, searches: Workers, *, apart: bool = False
    ) -> None:
        self.keep = keep
        self.storage = storage
        self._searches = searches
        self._apart = apart
        self._states: dict[str, RunState] = {}  # oldest first
        self._of_owner: dict[str, dict[str, RunState]] = {}  # the same of each owner
        # By owner and id: of a tree that several have made while they shared all runs, each has a part.
        self._trees: dict[tuple[str | None, str], TreeState] = {}
        # A read of the storage that began before a removal must not bring the run back.
        self._removed: dict[str, None] = {}

    @property
    def states(self) -> Sequence[RunState]:
        """The runs in memory, of all owners, oldest first."""
        return list(self._states.values())

    @property
    def viewer(self) -> str | None:
        """The owner whose runs the request in hand may see; None if it may see all."""
        return owner_of_runs() if self._apart else None

    def _known(self, id: str) -> RunState | None:
        """Returns a run in memory that the request in hand may see."""
        state = self._states.get(id)
        return state if state is not None and self.viewer in (None, state.owner) else None

    def _place_of(self, state: RunState) -> tuple[str | None, str]:
        """Returns the place of a run's tree in `_trees`."""
        return (state.owner if self._apart else None), state.tree.id

    def holds(self, *, run: str | None = None, tree: str | None = None) -> bool:
        """Returns whether a run or a tree is in memory."""
        return self._known(run or "") is not None or (self.viewer, tree) in self._trees

    def running(self) -> list[RunState]:
        return [state for state in self._states.values() if state.request is not None]

    def add(self, state: RunState) -> None:
        self._insert(state)
        if self.storage is not None:
            self.storage.begin(state)  # again where it goes on after a pause

    def note_progress(self) -> None:
        """Lets the storage write, now and then, what the runs that are being computed have by now."""
        if self.storage is not None and self.storage.wants_progress:
            self.storage.progress(self.running())

    def _insert(self, state: RunState) -> None:
        self._states[state.run.id] = state
        self._of_owner.setdefault(state.owner, {})[state.run.id] = state
        self._trees[self._place_of(state)] = state.tree
        state.tree.states[state.run.id] = state

    # ── finding ────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, id: str) -> RunState:
        state = await self.find(id)
        if state is None:
            raise _no_run(id)
        return state

    async def find(self, id: str) -> RunState | None:
        """Returns a run from memory or from the storage."""
        state = self._known(id)
        if state is not None or self.storage is None:
            return state
        stored = await self.storage.get(id, self.viewer)
        if stored is None or id in self._removed:
            return None
        if id in self._states:  # another request may have brought it meanwhile
            return self._known(id)
        tree = self._trees.get((self.viewer, stored.tree)) or TreeState(stored.tree)
        state = RunState(stored.run, tree, stored.name, stored.owner or "")
        state.added, state.model, state.is_elsewhere = stored.added, stored.model, stored.is_elsewhere
        state.counts_forks = False
        if not state.is_elsewhere:  # what is in memory does not change with the store
            self._insert(state)
            self.trim()
        return state

    async def count_forks(self, state: RunState) -> None:
        """Makes a run that came from the storage know of its forks there, before it is forked once more."""
        if not state.counts_forks and self.storage is not None:
            await self.storage.count_forks(state.run, self.viewer)
            state.counts_forks = True

    async def tree(self, id: str) -> TreeState:
        tree = self._trees.get((self.viewer, id))
        if tree is None and self.storage is not None:
            for kept in await self.storage.list(Listing(1, id, owner=self.viewer), brief=True):
                state = await self.find(kept.entry.id)
                tree = None if state is None else state.tree
        if tree is None:
            raise APIError(404, f"there is no tree {id[:40]!r}", code="no_such_tree")
        return tree

    async def newest(
        self, listing: Listing, client: str, brief: bool = False
    ) -> tuple[Sequence[RunState | KeptRun], bool]:
        """Returns a part of the list of runs, those in the storage by their columns alone, and whether there
        are more. If `brief`, texts may be cut."""
        limit = listing.limit or 0
        listing = replace(listing, owner=self.viewer)
        page = replace(listing, limit=limit + 1)
        if listing.search:
            kept, states = await self._search(page, client, brief)
        else:
            kept = [] if self.storage is None else await self.storage.list(page, brief)
            states = _select(self.states, listing)
        ordered: list[tuple[float, str, RunState | KeptRun]] = [
            (each.added, each.entry.id, each)
            for each in kept
            if each.entry.id not in self._removed and each.entry.id not in self._states
        ]
        ordered += [(state.added, state.run.id, state) for state in states]
        ordered.sort(key=lambda each: each[:2], reverse=True)
        return [each for _, _, each in ordered[:limit]], max(len(ordered), len(kept)) > limit

    async def _search(
        self, listing: Listing, client: str, brief: bool
    ) -> tuple[Sequence[KeptRun], Sequence[RunState]]:
        """Returns the runs with a text in them, of the storage and of those in memory. It ends after some
        seconds, and when the caller is cancelled."""
        stop = Stop(_SEARCH)

        def work(states: Sequence[RunState]) -> tuple[Sequence[KeptRun], Sequence[RunState]]:
            kept = [] if self.storage is None else self.storage.search(listing, brief, stop)
            return kept, _select(states, listing, stop)

        try:
            return await answered(self._searches.run_for(client, work, self.states))
        finally:
            stop.cancel()

    async def place(self, id: str) -> tuple[float, str]:
        """Returns the place of a run in the list, as `Listing.before` takes it."""
        state = self._known(id)
        if state is not None:
            return state.added, id
        added = None if self.storage is None else await self.storage.added(id, self.viewer)
        if added is None:
            raise _no_run(id)
        return added, id

    # ── ending ─────────────────────────────────────────────────────────────────────────────────────────────

    def keep_ended(self, state: RunState) -> bool:
        """Writes a run that has ended to the storage. Returns whether `written` has to be waited for before
        clients are told."""
        # A run that was forgotten while it was computed is not stored.
        if self.storage is None or self._states.get(state.run.id) is not state:
            return False
        self.storage.put(state)
        return self.storage.is_shared

    async def written(self) -> None:
        """Returns when all runs that have ended are in the storage, if servers share it."""
        if self.storage is not None:
            await self.storage.written()

    async def add_ended(self, states: Sequence[RunState]) -> None:
        """Adds runs that have ended before, and returns when they are `written`."""
        for state in states:
            self.add(state)
            self.keep_ended(state)
        self.trim()
        await self.written()

    def trim(self) -> None:
        """Forgets runs that no request needs any more: the oldest of the owner that has the most."""
        for _ in range(len(self._states) - self.keep):
            state = self._oldest_idle()
            if state is None:
                return
            self.forget(state)

    def _oldest_idle(self) -> RunState | None:
        """Returns the oldest run that no request needs, of the owner that has the most runs; of another one
        if it needs all of them."""
        for states in sorted(self._of_owner.values(), key=len, reverse=True):
            for state in states.values():
                if state.request is None and not state.users:
                    return state
        return None

    def forget(self, state: RunState, for_good: bool = False) -> None:
        """Takes a run out of memory; with `for_good` out of the storage too, soon."""
        self._states.pop(state.run.id, None)
        runs = self._of_owner.get(state.owner, {})
        runs.pop(state.run.id, None)
        if not runs:
            self._of_owner.pop(state.owner, None)
        state.tree.forget(state)
        if not state.tree.states:
            self._trees.pop(self._place_of(state), None)
            state.tree.wake()
        if for_good:
            self._note_removed(state.run.id)
            if self.storage is not None:
                self.storage.forget(state.run.id)

    async def remove(self, id: str) -> Run | None:
        """Removes a run everywhere. It is gone when this returns, and still there if this fails. Returns the
        run, or None if it could not be read."""
        self._check_ended(id)
        viewer = self.viewer
        if self.storage is not None and await self.storage.is_elsewhere(id, viewer):
            raise _still_running(id, ELSEWHERE)
        run: Run | None = None
        if self.storage is not None and self._known(id) is None:
            with suppress(APIError):  # a damaged run can be removed too
                kept = await self.storage.get(id, viewer)
                run = None if kept is None else kept.run
        stored = False if self.storage is None else await self.storage.remove(id, viewer)
        self._check_ended(id)  # it may have been continued meanwhile, and is then in the storage again
        state = self._known(id)
        if state is None and not stored:
            raise _no_run(id)
        self._note_removed(id)
        if state is None:
            return run
        self.forget(state)
        return state.run

    def _check_ended(self, id: str) -> None:
        state = self._known(id)
        if state is not None and state.request is not None:
            raise _still_running(id, state.status)

    def _note_removed(self, id: str) -> None:
        self._removed[id] = None
        if len(self._removed) > _MOST_REMOVED:
            del self._removed[next(iter(self._removed))]


def _select(states: Sequence[RunState], listing: Listing, stop: Stop | None = None) -> Sequence[RunState]:
    selected = []
    for state in states:
        if stop is not None:
            stop.check()
        if listing.has(state.run, state.tree.id, state.added, state.owner):
            selected.append(state)
    return selected


def _still_running(id: str, status: str) -> APIError:
    how = "computed by another server; stop it there" if status == ELSEWHERE else f"{status}; stop it"
    return APIError(409, f"run {id} is {how} first", code="still_running")


def _no_run(id: str) -> APIError:
    return APIError(404, f"there is no run {id[:40]!r}; it may have been forgotten", code="no_such_run")
