"""The runs that the server keeps: all that are made now, and the last so many that have ended.

It is in memory. Who wants them to outlive the process gives it a `Store`, which is told of every run that
has ended and asked for those that are not here.
"""

from __future__ import annotations

from typing import Protocol

from glassloop.server.errors import APIError
from glassloop.server.live import Live, Tree
from glassloop.trace.run import Run


class Store(Protocol):
    """Where runs outlive the process."""

    def begin(self, run: Run) -> None:
        """A run has begun; if nothing is heard of it again, it was interrupted."""

    def put(self, run: Run) -> None:
        """It has ended, or has gone on and ended again."""

    def get(self, id: str) -> Run | None: ...

    def ids(self, limit: int) -> list[str]:
        """The newest first."""

    def remove(self, id: str) -> None: ...


class Shelf:
    def __init__(self, keep: int, store: Store | None = None) -> None:
        self.keep = keep
        self.store = store
        self._lives: dict[str, Live] = {}  # oldest first
        self._trees: dict[str, Tree] = {}

    def __len__(self) -> int:
        return len(self._lives)

    def add(self, live: Live) -> None:
        self._place(live)
        if self.store is not None and self.keep:
            self.store.begin(live.run)  # again where it goes on after a pause

    def _place(self, live: Live) -> None:
        self._lives[live.run.id] = live
        self._trees[live.tree.id] = live.tree
        live.tree.lives[live.run.id] = live

    def get(self, id: str) -> Live:
        live = self.find(id)
        if live is None:
            raise APIError(
                404, f"there is no run {id[:40]!r}; it may have been forgotten", code="no_such_run"
            )
        return live

    def find(self, id: str) -> Live | None:
        live = self._lives.get(id)
        if live is None and self.store is not None:
            run = self.store.get(id)
            if run is not None:
                live = Live(run, Tree())
                live.created = run.created
                self._place(live)
        return live

    def tree(self, id: str) -> Tree:
        tree = self._trees.get(id)
        if tree is None:
            raise APIError(404, f"there is no tree {id[:40]!r}", code="no_such_tree")
        return tree

    def newest(self, limit: int, tree: str | None = None) -> list[Live]:
        if self.store is not None and tree is None:
            for id in self.store.ids(min(limit, self.keep)):
                self.find(id)
        found: list[Live] = []
        for live in sorted(self._lives.values(), key=lambda live: -live.created):
            if len(found) == limit:
                break
            if tree is None or live.tree.id == tree:
                found.append(live)
        return found

    def running(self) -> list[Live]:
        return [live for live in self._lives.values() if live.request is not None]

    def ended(self, live: Live) -> None:
        if self.store is not None and self.keep:
            self.store.put(live.run)
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
        self._lives.pop(live.run.id, None)
        live.tree.forget(live)
        if not live.tree.lives:
            self._trees.pop(live.tree.id, None)
            live.tree.wake()
        if for_good and self.store is not None:
            self.store.remove(live.run.id)
