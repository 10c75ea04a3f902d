"""Runs that outlive the process: the store of `trace`, for use from the event loop.

A run is written when it begins, about every second while it is computed, and when it has ended. So a run that
a killed server left behind has what clients have seen of it, but no end, and is shown as interrupted. Other
servers and programs may use the store at the same time; what they have made is shown, and never pruned. The
event loop never waits for a disk: the store's own thread writes and a small pool reads, so a store that hangs
delays nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import NamedTuple, TypeVar

from glassloop.errors import StoreError, TraceError
from glassloop.record.run import Run
from glassloop.record.store.database import SearchStopped, Stop
from glassloop.record.store.entry import KeptRun
from glassloop.record.store.listing import Listing
from glassloop.record.store.notes import Note
from glassloop.record.store.server_name import hold_name
from glassloop.record.store.store import Store
from glassloop.server.http.errors import APIError
from glassloop.server.operation.logs import Log
from glassloop.server.operation.settings import public_name
from glassloop.server.runs.state import RunState

INTERRUPTED = "cancelled", "interrupted: the server ended"  # finish_reason and stop_reason
_PATIENCE = 5.0  # seconds that a write waits for another process
_PRUNE_EVERY = 50  # runs
_MOST_WAIT = 2.0  # seconds that the end of a run waits for a shared store
_READERS = 2
_PROGRESS = 1.0  # seconds between two writes of what runs have by then, and
_SHARE = 20  # how much longer than such a write took the next one waits, at least
T = TypeVar("T")


class StoredRun(NamedTuple):
    run: Run
    tree: str
    name: str | None
    owner: str | None
    added: float
    model: str  # as it is recorded; that of the run has no path
    is_elsewhere: bool


class RunStorage:
    """The store, a file or a PostgreSQL URL, as one server uses it. It is opened and tested when this is
    made, so a store that cannot be used is an error at the start.

    `address` is where the server listens, or None if any port will do. With `keep` all but the newest runs
    that this server makes are removed; without, the store keeps all.
    """

    def __init__(self, path: str | Path, address: str | None, keep: int | None, log: Log) -> None:
        self._name = hold_name(path, address)
        name, prunes = self._name.name, keep is not None
        self._store = Store(path, patience=_PATIENCE, origin="server", writer=name, prunes=prunes)
        self._store.check()
        self._store.notes.create()
        self._pool = ThreadPoolExecutor(_READERS, "glassloop store reader")
        self._keep = keep
        self._log = log
        self._since_pruning = 0  # runs
        self._next_progress = 0.0  # when it may be written again
        self._reason = ""
        self.failed_writes = 0
        self.lost_runs = 0
        self._store.on_failure(self._failed)
        self.key = self._name.shared_key()

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
        """Writes a run without an end, with the tokens that clients have seen. If the server is killed, that
        is what remains of it."""
        begun = copy(state.run)
        begun.tokens, begun.tail, begun.end = state.run.tokens[: state.sent], "", None
        begun.prompt_tokens, begun.finish_reason, begun.samples = [], None, []
        begun.origin = state.run.origin.begun()
        state.written = state.sent
        self._put(begun, state)

    @property
    def wants_progress(self) -> bool:
        """Whether `progress` would write now."""
        return time.monotonic() >= self._next_progress

    def progress(self, states: Iterable[RunState]) -> None:
        """Writes what runs that are being computed have by now. It is done about every second, and less often
        where it takes long: many long runs must not keep the store's thread from its other work."""
        grown = [state for state in states if state.sent > state.written and state.run.origin.in_order]
        began, self._next_progress = time.monotonic(), inf
        for state in grown:
            self.begin(state)

        def done(_: object) -> None:
            now = time.monotonic()
            self._next_progress = now + max(_PROGRESS, _SHARE * (now - began))

        self._store.written().add_done_callback(done)

    def put(self, state: RunState) -> None:
        """Writes a run that has ended, for the first time or again."""
        self._put(copy(state.run), state)
        self._since_pruning += 1
        if self._since_pruning >= _PRUNE_EVERY:
            self._prune()

    @property
    def is_shared(self) -> bool:
        """Whether servers on other machines use the store too."""
        return self._store.path is None

    async def written(self) -> None:
        """Returns when all that was put before is in the store, if it is shared: other servers must find a
        run that a client was told to be finished, even if this server is killed then. It waits for a bounded
        time, so a store that is away delays an end and never prevents it."""
        if self.is_shared:
            await asyncio.wait([asyncio.wrap_future(self._store.written())], timeout=_MOST_WAIT)

    def _put(self, run: Run, state: RunState) -> None:
        run.model = state.model or run.model
        owner = state.owner or None
        self._store.put(run, tree=state.tree.id, name=state.name, added=state.added, owner=owner)

    def _prune(self) -> None:
        self._since_pruning = 0
        if self._keep is not None:
            self._store.prune_soon(self._keep, self._name.name)
            self._store.call(self._store.notes.prune)

    def forget(self, id: str) -> None:
        """Removes a run soon."""
        self._store.remove_soon(id)

    async def remove(self, id: str, owner: str | None = None) -> bool:
        """Removes a run, which is gone when this returns. Returns whether there was one."""
        return await answered(asyncio.wrap_future(self._store.remove_soon(id, owner))) > 0

    def close(self) -> None:
        """Writes what waits. What cannot be written is logged, and raised."""
        try:
            self._prune()
            self._store.close()
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._name.release()

    # ── reading ────────────────────────────────────────────────────────────────────────────────────────────

    # With an owner, the runs of all others do not exist.

    async def get(self, id: str, owner: str | None = None) -> StoredRun | None:
        return await self._read(lambda: self._get(id, owner))

    def _get(self, id: str, owner: str | None) -> StoredRun | None:
        run = self._store.run(id, owner)
        if run is None:
            return None
        is_elsewhere = run.finish_reason is None and self._is_running(self._store.writer_of(id))
        if run.finish_reason is None and not is_elsewhere:
            # Nobody computes it now. But it may have ended after it was read.
            run = self._store.run(id)
            if run is None:
                return None
            if run.finish_reason is None:
                run.finish_reason, run.stop_reason = INTERRUPTED
        model, run.model = run.model, public_name(run.model)  # the terminal records paths
        added = self._store.added(id)
        return StoredRun(
            *(run, *self._store.tree_of(id), run.created if added is None else added, model, is_elsewhere)
        )

    async def count_forks(self, run: Run, owner: str | None = None) -> None:
        """Counts the forks of a run that was read before they were made."""
        await self._read(lambda: self._store.count_forks(run, owner))

    async def list(self, listing: Listing, brief: bool = False) -> Sequence[KeptRun]:
        """Returns a part of the list of runs, the newest first."""
        return await self._read(lambda: self._list(listing, brief))

    def search(self, listing: Listing, brief: bool, stop: Stop) -> Sequence[KeptRun]:
        """Returns the part of the list of runs that a search finds, on the caller's thread: it may take
        seconds, and other readers must not wait for it."""
        return self._list(listing, brief, stop)

    def _list(self, listing: Listing, brief: bool, stop: Stop | None = None) -> Sequence[KeptRun]:
        kept = self._store.kept(listing, brief, stop)
        writers = {each.writer for each in kept if each.entry.finish_reason is None}
        running = {writer for writer in writers if self._is_running(writer)}
        return [replace(each, is_elsewhere=each.writer in running) for each in kept]

    async def is_elsewhere(self, id: str, owner: str | None = None) -> bool:
        """Returns whether another server computes a run now."""
        return await self._read(lambda: self._is_running(self._store.writer_of(id, owner)))

    def _is_running(self, writer: str | None) -> bool:
        return writer is not None and self._name.is_running(writer)

    async def added(self, id: str, owner: str | None = None) -> float | None:
        """Returns when a run was added."""
        return await self._read(lambda: self._store.added(id, owner))

    # ── notes ──────────────────────────────────────────────────────────────────────────────────────────────

    async def put_notes(self, notes: Sequence[Note]) -> None:
        await self._write(lambda: self._store.notes.put(notes))

    async def note(self, id: str, owner: str | None) -> Note | None:
        return await self._read(lambda: self._store.notes.get(id, owner))

    async def parts_of_note(self, parent: str, most: int, owner: str | None) -> Sequence[Note]:
        return await self._read(lambda: self._store.notes.parts(parent, most, owner))

    async def remove_note(self, id: str, owner: str | None) -> bool:
        return await self._write(lambda: self._store.notes.remove(id, owner)) > 0

    async def _write(self, work: Callable[[], T]) -> T:
        return await answered(asyncio.wrap_future(self._store.call(work)))

    async def _read(self, work: Callable[[], T]) -> T:
        return await answered(asyncio.get_running_loop().run_in_executor(self._pool, work))


async def answered(work: Awaitable[T]) -> T:
    """Returns what is read from a store. The messages of the store's errors name its path, so clients get
    other ones."""
    try:
        return await work
    except SearchStopped as error:
        message = f"{error}; a search in fewer runs is expected, such as with tree"
        raise APIError(408, message, param="search", code="search_timeout") from error
    except StoreError as error:
        message = f"the server's store cannot be used now: {error.reason}"
        raise APIError(507 if error.full else 503, message, code="store_unavailable") from error
    except TraceError as error:
        message = "this run is damaged in the store and cannot be shown"
        raise APIError(404, message, code="damaged_run") from error
