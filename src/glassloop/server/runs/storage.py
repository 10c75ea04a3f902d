"""Runs that outlive the process: the SQLite store of `trace`, for use from the event loop.

A run is written when it begins and again when it has ended, so a run that a killed server left behind has no
end in the store and is shown as interrupted. The event loop never waits for a disk: the store's own thread
writes and a small pool reads, so a store that hangs delays nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from pathlib import Path
from typing import NamedTuple, TypeVar

from glassloop.errors import StoreError, TraceError
from glassloop.server.errors import APIError
from glassloop.server.operation.logs import Log
from glassloop.server.runs.state import RunState
from glassloop.trace.entry import Kept
from glassloop.trace.listing import Listing
from glassloop.trace.lock import ServerLock
from glassloop.trace.run import Run
from glassloop.trace.store import Store

INTERRUPTED = "cancelled", "interrupted: the server ended"  # finish_reason and stop_reason
_ORIGIN = "server"
_PATIENCE = 5.0  # seconds that a write waits for another process
_PRUNE_EVERY = 50  # runs
_READERS = 2
T = TypeVar("T")


class StoredRun(NamedTuple):
    run: Run
    tree: str
    name: str | None
    added: float


class RunStorage:
    """The store of one server. It is opened, tested and locked when this is made, so a store that cannot be
    used is an error at the start."""

    def __init__(self, path: Path, keep: int, log: Log) -> None:
        self._store = Store(path, patience=_PATIENCE, origin=_ORIGIN)
        self._store.check()
        self._lock = ServerLock(path)
        self._pool = ThreadPoolExecutor(_READERS, "glassloop store reader")
        self._keep = keep
        self._log = log
        self._since_pruning = 0  # runs
        self._reason = ""
        self.failed_writes = 0
        self.lost_runs = 0
        self._store.on_failure(self._failed)

    @property
    def unwritten(self) -> int:
        """The number of runs that could not be written yet."""
        return self._store.unwritten

    @property
    def problem(self) -> str | None:
        """What is wrong with the store now, without its path."""
        count = self.unwritten
        if not count:
            return None
        runs = "1 run is" if count == 1 else f"{count} runs are"
        return f"{runs} not yet in the store: {self._reason}"

    def _failed(self, run: Run, error: Exception, lost: bool) -> None:
        """Counts and logs a failed write. Called on the store's thread."""
        self._reason = error.reason if isinstance(error, StoreError) else str(error)
        if lost:
            self.lost_runs += 1
        self.failed_writes += not (lost and isinstance(error, StoreError))  # that one was counted before
        self._log("store", run=run.id, error=self._reason, lost=lost)

    # ── writing ────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, state: RunState) -> None:
        """Writes a run without an end. If the server is killed, that is what remains of it."""
        begun = copy(state.run)
        begun.tokens = state.run.tokens[: state.run.fork_at or 0]
        begun.prompt_tokens, begun.finish_reason, begun.samples = [], None, []
        self._store.put(begun, tree=state.tree.id, name=state.name, added=state.added)

    def put(self, state: RunState) -> None:
        """Writes a run that has ended, for the first time or again."""
        self._store.put(state.run, tree=state.tree.id, name=state.name, added=state.added)
        self._since_pruning += 1
        if self._since_pruning >= _PRUNE_EVERY:
            self._since_pruning = 0
            self._store.prune_soon(self._keep, _ORIGIN)

    def forget(self, id: str) -> None:
        """Removes a run soon."""
        self._store.remove_soon(id)

    async def remove(self, id: str) -> bool:
        """Removes a run, which is gone when this returns. Returns whether there was one."""
        return await self._answered(asyncio.wrap_future(self._store.remove_soon(id))) > 0

    def close(self) -> None:
        """Writes what waits. What cannot be written is logged, and raised."""
        try:
            self._store.prune_soon(self._keep, _ORIGIN)
            self._store.close()
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._lock.release()

    # ── reading ────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, id: str) -> StoredRun | None:
        return await self._read(lambda: self._get(id))

    def _get(self, id: str) -> StoredRun | None:
        run = self._store.run(id)
        if run is None:
            return None
        if run.finish_reason is None:
            run.finish_reason, run.stop_reason = INTERRUPTED
        return StoredRun(run, *self._store.tree_of(id), self._store.added(id) or run.created)

    async def list(self, listing: Listing, brief: bool = False) -> Sequence[Kept]:
        """Returns a part of the list of runs, the newest first."""
        return await self._read(lambda: self._store.kept(listing, brief))

    async def added(self, id: str) -> float | None:
        """Returns when a run was added."""
        return await self._read(lambda: self._store.added(id))

    async def _read(self, work: Callable[[], T]) -> T:
        return await self._answered(asyncio.get_running_loop().run_in_executor(self._pool, work))

    async def _answered(self, future: asyncio.Future[T]) -> T:
        """Returns the result of a future. The messages of the store's errors name its path, so clients get
        other ones."""
        try:
            return await future
        except StoreError as error:
            message = f"the server's store cannot be used now: {error.reason}"
            raise APIError(507 if error.full else 503, message, code="store_unavailable") from error
        except TraceError as error:
            message = "this run is damaged in the store and cannot be shown"
            raise APIError(404, message, code="damaged_run") from error
