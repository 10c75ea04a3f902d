"""The runs that the server keeps: all that are made now, and the last so many that have ended.

It is in memory. With a `Keeper` runs outlive the process: it is told of every run that begins and ends, and
asked for those that are not here. All methods are for the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from glassloop.server.errors import APIError
from glassloop.server.runs.state import Live, Tree
from glassloop.server.runs.storage import Keeper
from glassloop.trace.entry import Kept

_MOST_REMOVED = 10_000  # ids of removed runs that are remembered


class Shelf:
    def __init__(self, keep: int, store: Keeper | None = None) -> None:
        self.keep = keep
        self.store = store
        self._lives: dict[str, Live] = {}  # oldest first
        self._trees: dict[str, Tree] = {}
        # A read of the store that began before a removal must not bring the run back.
        self._removed: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._lives)

    @property
    def lives(self) -> Sequence[Live]:
        """Those in memory, oldest first."""
        return list(self._lives.values())

    def add(self, live: Live) -> None:
        self._place(live)
        if self.store is not None and self.keep:
            self.store.begin(live)  # again where it goes on after a pause

    def _place(self, live: Live) -> None:
        self._lives[live.run.id] = live
        self._trees[live.tree.id] = live.tree
        live.tree.lives[live.run.id] = live

    # ── looking ────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, id: str) -> Live:
        live = await self.find(id)
        if live is None:
            raise _no_run(id)
        return live

    async def find(self, id: str) -> Live | None:
        """A run from memory, or from the store."""
        live = self._lives.get(id)
        if live is not None or self.store is None:
            return live
        stored = await self.store.get(id)
        if stored is None or id in self._removed:
            return None
        if id not in self._lives:  # nobody else brought it meanwhile
            tree = self._trees.get(stored.tree) or Tree(stored.tree)
            live = Live(stored.run, tree, stored.name)
            live.created = stored.run.created
            self._place(live)
            self.trim()
        return self._lives.get(id)

    async def tree(self, id: str) -> Tree:
        tree = self._trees.get(id)
        if tree is None and self.store is not None:
            for kept in await self.store.list(1, id):
                live = await self.find(kept.entry.id)
                tree = None if live is None else live.tree
        if tree is None:
            raise APIError(404, f"there is no tree {id[:40]!r}", code="no_such_tree")
        return tree

    async def newest(self, limit: int, tree: str | None = None) -> list[Live | Kept]:
        """The newest runs, of one tree or of all: those in memory, and of those in the store what their
        columns tell."""
        kept = [] if self.store is None else await self.store.list(min(limit, self.keep), tree)
        found: dict[str, tuple[float, Live | Kept]] = {
            each.entry.id: (each.entry.created, each) for each in kept if each.entry.id not in self._removed
        }
        for live in self._lives.values():
            if tree is None or live.tree.id == tree:
                found[live.run.id] = live.created, live
        ordered = sorted(found.values(), key=lambda each: -each[0])
        return [each for _, each in ordered[:limit]]

    def running(self) -> list[Live]:
        return [live for live in self._lives.values() if live.request is not None]

    # ── ending ─────────────────────────────────────────────────────────────────────────────────────────────

    def ended(self, live: Live) -> None:
        # One that was forgotten while it ran stays so.
        if self.store is not None and self.keep and self._lives.get(live.run.id) is live:
            self.store.put(live)
        self.trim()

    def trim(self) -> None:
        """Forget the oldest that nobody needs any more."""
        over = len(self._lives) - self.keep
        if over <= 0:
            return
        for live in list(self._lives.values()):
            if over <= 0:
                break
            if live.request is None and not live.users:
                self.forget(live)
                over -= 1

    def forget(self, live: Live, for_good: bool = False) -> None:
        """Take a run out of memory; `for_good`: out of the store too, soon."""
        self._lives.pop(live.run.id, None)
        live.tree.forget(live)
        if not live.tree.lives:
            self._trees.pop(live.tree.id, None)
            live.tree.wake()
        if for_good:
            self._bury(live.run.id)
            if self.store is not None:
                self.store.forget(live.run.id)

    async def remove(self, id: str) -> None:
        """Remove a run everywhere. It is gone when this returns, and still here if this fails."""
        self._check_ended(id)
        stored = False if self.store is None else await self.store.remove(id)
        self._check_ended(id)  # it may have been continued meanwhile, and is then in the store again
        live = self._lives.get(id)
        if live is None and not stored:
            raise _no_run(id)
        self._bury(id)
        if live is not None:
            self.forget(live)

    def _check_ended(self, id: str) -> None:
        live = self._lives.get(id)
        if live is not None and live.request is not None:
            raise APIError(409, f"run {id} is {live.status}; stop it first", code="still_running")

    def _bury(self, id: str) -> None:
        self._removed[id] = None
        if len(self._removed) > _MOST_REMOVED:
            del self._removed[next(iter(self._removed))]


def _no_run(id: str) -> APIError:
    return APIError(404, f"there is no run {id[:40]!r}; it may have been forgotten", code="no_such_run")
