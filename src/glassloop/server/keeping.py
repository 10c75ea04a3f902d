"""Runs that outlive the process: the trace's SQLite store, as the shelf wants to see it.

A run is written when it begins and again when it has ended, so one that a killed server left behind is there
without an end, and is told as interrupted.
"""

from __future__ import annotations

from copy import copy
from pathlib import Path

from glassloop.errors import TraceError
from glassloop.trace.run import Run
from glassloop.trace.store import Store

_PRUNE_EVERY = 50  # runs


class Keeper:
    def __init__(self, path: Path, keep: int) -> None:
        self._store = Store(path)
        self._keep = keep
        self._since = 0

    def begin(self, run: Run) -> None:
        # A copy: the engine fills the run itself while it is being written.
        begun = copy(run)
        begun.tokens = list(run.tokens[: run.fork_at or 0])
        begun.prompt_tokens, begun.finish_reason, begun.samples = [], None, []
        self._store.put(begun)

    def put(self, run: Run) -> None:
        self._store.put(run)
        self._since += 1
        if self._since >= _PRUNE_EVERY:
            self._since = 0
            self._store.prune(self._keep)

    def get(self, id: str) -> Run | None:
        try:
            run = self._store.get(id)
        except TraceError:
            return None
        if run.id != id:  # the store knows runs by the beginning of their ids too
            return None
        if run.finish_reason is None:
            run.finish_reason, run.stop_reason = "cancelled", "interrupted: the server ended"
        return run

    def ids(self, limit: int) -> list[str]:
        return [entry.id for entry in self._store.list(limit)]

    def remove(self, id: str) -> None:
        try:
            self._store.remove(id)
        except TraceError:
            return

    def close(self) -> None:
        self._store.flush()
        self._store.prune(self._keep)
