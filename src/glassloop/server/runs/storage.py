"""Runs that outlive the process: the trace's SQLite store, as the shelf wants to see it.

A run is written when it begins and again when it has ended, so one that a killed server left behind is there
without an end, and is told as interrupted. Nothing here waits for a disk on the event loop: writing is done
by the store's own thread, reading by a small pool, so that a store that hangs holds up nothing else.
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
from glassloop.server.runs.state import Live
from glassloop.trace.entry import Kept
from glassloop.trace.lock import ServerLock
from glassloop.trace.run import Run
from glassloop.trace.store import Store

INTERRUPTED = "cancelled", "interrupted: the server ended"  # finish_reason and stop_reason
_ORIGIN = "server"
_PATIENCE = 5.0  # seconds that a write waits for another process
_PRUNE_EVERY = 50  # runs
_READERS = 2
T = TypeVar("T")


class Stored(NamedTuple):
    """A run from the store, and where the server shows it."""

    run: Run
    tree: str
    name: str | None


class Keeper:
    """A server's store. It is opened, tested and locked here: a store that cannot be used is an error at
    the start."""

    def __init__(self, path: Path, keep: int, log: Log) -> None:
        self._store = Store(path, patience=_PATIENCE, origin=_ORIGIN)
        self._store.check()
        self._lock = ServerLock(path)
        self._pool = ThreadPoolExecutor(_READERS, "glassloop store reader")
        self._keep = keep
        self._log = log
        self._since = 0
        self._reason = ""
        self.failed_writes = 0
        self.lost_runs = 0
        self._store.on_failure(self._failed)

    @property
    def unwritten(self) -> int:
        """How many runs could not be written yet."""
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
        """Called on the store's thread."""
        self._reason = error.reason if isinstance(error, StoreError) else str(error)
        if lost:
            self.lost_runs += 1
        self.failed_writes += not (lost and isinstance(error, StoreError))  # that one was counted before
        self._log("store", run=run.id, error=self._reason, lost=lost)

    # ── writing ────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, live: Live) -> None:
        """A run has begun; if nothing is heard of it again, it was interrupted."""
        begun = copy(live.run)
        begun.tokens = live.run.tokens[: live.run.fork_at or 0]
        begun.prompt_tokens, begun.finish_reason, begun.samples = [], None, []
        self._store.put(begun, tree=live.tree.id, name=live.name)

    def put(self, live: Live) -> None:
        """It has ended, or has gone on and ended again."""
        self._store.put(live.run, tree=live.tree.id, name=live.name)
        self._since += 1
        if self._since >= _PRUNE_EVERY:
            self._since = 0
            self._store.prune_soon(self._keep, _ORIGIN)

    def forget(self, id: str) -> None:
        """Remove a run that nobody waits for to be gone."""
        self._store.remove_soon(id)

    async def remove(self, id: str) -> bool:
        """Remove a run; whether there was one. It is gone when this returns."""
        try:
            removed: int = await asyncio.wrap_future(self._store.remove_soon(id))
            return removed > 0
        except StoreError as error:
            raise _told(error) from error

    def close(self) -> None:
        """Write what waits. What cannot be written is logged, and raised."""
        try:
            self._store.prune_soon(self._keep, _ORIGIN)
            self._store.close()
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._lock.release()

    # ── reading ────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, id: str) -> Stored | None:
        return await self._read(lambda: self._get(id))

    def _get(self, id: str) -> Stored | None:
        run = self._store.run(id)
        if run is None:
            return None
        if run.finish_reason is None:
            run.finish_reason, run.stop_reason = INTERRUPTED
        return Stored(run, *self._store.tree_of(id))

    async def list(self, limit: int, tree: str | None) -> Sequence[Kept]:
        """The newest first."""
        return await self._read(lambda: self._store.kept(limit, tree))

    async def _read(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except StoreError as error:
            raise _told(error) from error
        except TraceError as error:  # its message names the path of the store
            raise APIError(
                404, "this run is damaged in the store and cannot be shown", code="damaged_run"
            ) from error


def _told(error: StoreError) -> APIError:
    return APIError(
        507 if error.full else 503,
        f"the server's store cannot be used now: {error.reason}",
        code="store_unavailable",
    )
