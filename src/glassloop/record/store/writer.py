"""A thread that writes runs, so that the engine and the server never wait for a disk.

Runs and other jobs are done in the order in which they came. A run that cannot be written is tried again
later. The number of runs that wait for that is bounded; those that are given up are reported.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from glassloop.errors import GlassloopError, StoreError, TraceError
from glassloop.record.run import Run

_LINGER = 0.05  # seconds to wait for more runs, which are written together
_IDLE = 2.0  # seconds without anything to write, after which the thread ends
_RETRY = 5.0  # seconds until a failed write is tried again
MOST_UNWRITTEN = 4096  # runs that wait to be tried again: minutes in which a database is away
MOST_TOKENS = 1_000_000  # that they may have together, some hundred megabytes; the newest run always stays


class QueuedRun(NamedTuple):
    """A run to be written, with the tree and the name that a server lists it by, when it was added, and whose
    it is."""

    run: Run
    tree: str | None = None
    name: str | None = None
    added: float | None = None
    owner: str | None = None


class _Job(NamedTuple):
    work: Callable[[], Any]
    without: str | None  # the id of a run that is not tried again
    owner: str | None  # whose it has to be; any if not given
    done: Future[Any]


class StoreWriter:
    """Writes runs on a thread, which starts with the first run and ends when none is left.

    `write` writes several runs, all or none. `failed` is called, on the thread, for each run that could not
    be written: with False when it first failed, and with True when it was given up. `idle` is called, on the
    thread, before it ends.
    """

    def __init__(
        self,
        write: Callable[[Sequence[QueuedRun]], None],
        failed: Callable[[Run, Exception, bool], None] = lambda run, error, lost: None,
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._write = write
        self._idle = idle
        self.failed = failed
        self._changed = threading.Condition()
        self._waiting: list[QueuedRun | _Job] = []
        self._hurry = False  # a job is waited for
        self._thread: threading.Thread | None = None
        # Used by the thread alone: runs to try again by id, the oldest first, and when; what `flush` reports.
        self._unwritten: dict[str, QueuedRun] = {}
        self._again = 0.0
        self._error: Exception | None = None
        self._lost = 0
        atexit.register(_flush_at_exit, weakref.ref(self))

    @property
    def unwritten(self) -> int:
        """How many runs could not be written yet and will be tried again."""
        return len(self._unwritten)

    def put(self, item: QueuedRun) -> None:
        with self._changed:
            self._waiting.append(item)
            self._changed.notify_all()
            self._wake()

    def call(
        self, work: Callable[[], Any], without: str | None = None, owner: str | None = None
    ) -> Future[Any]:
        """Runs a job on the thread, after all that was put before. `without` is the id of a run, if given of
        this owner, that is not tried again from then on."""
        done: Future[Any] = Future()
        with self._changed:
            self._waiting.append(_Job(work, without, owner, done))
            self._hurry = True
            self._changed.notify_all()
            self._wake()
        return done

    def flush(self) -> None:
        """Waits until everything is written. Tries failed runs once more; raises if some are given up."""
        # (After a fork of the process the thread, and what it has to write, belong to the parent process.)
        if self._thread is not None and self._thread.is_alive():
            self.call(self._give_up).result()
        lost, error, self._lost, self._error = self._lost, self._error, 0, None
        if lost and error is not None:
            message = str(error) if lost == 1 else f"{lost} runs were not kept: {error}"
            raise TraceError(message) from error

    def _wake(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="glassloop store", daemon=True)
            self._thread.start()

    # ── on the thread ──────────────────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._hurry, _LINGER)
                if not self._waiting and self._unwritten:
                    self._changed.wait_for(lambda: bool(self._waiting), _RETRY)
                elif not self._waiting and self._changed.wait_for(lambda: bool(self._waiting), _IDLE):
                    continue  # more runs may follow this one
                jobs, self._waiting, self._hurry = self._waiting, [], False
                if not jobs and not self._unwritten:
                    self._thread = None
                    break
            batch: list[QueuedRun] = []
            for job in jobs:
                if isinstance(job, QueuedRun):
                    batch.append(job)
                    continue
                self._put(batch)
                batch = []
                self._do(job)
            self._put(batch)
            del jobs, batch  # a waiting thread must not hold on to runs
        self._idle()

    def _put(self, batch: Sequence[QueuedRun]) -> None:
        again: dict[str, QueuedRun] = {}
        if self._unwritten and time.monotonic() >= self._again:
            again = dict(self._unwritten)
            self._again = time.monotonic() + _RETRY
        # A newer version of a run replaces one that is still waiting.
        items = again | {item.run.id: item for item in batch}
        if items:
            self._attempt(list(items.values()))

    def _attempt(self, items: Sequence[QueuedRun]) -> None:
        """Writes all at once; if that fails, one by one, so that a bad run does not affect the others."""
        try:
            self._write(items)
        except Exception as error:  # a full disk must not end the thread
            if len(items) == 1 or _is_busy(error):
                for item in items:
                    self._fail(item, error)
                self._bound(error)
                return
        else:
            for item in items:
                self._unwritten.pop(item.run.id, None)
            return
        failed = None
        for place, item in enumerate(items):
            try:
                self._write([item])
                self._unwritten.pop(item.run.id, None)
            except Exception as error:
                failed = error
                self._fail(item, error)
                if _is_busy(error):  # each of the others would wait as long
                    for other in items[place + 1 :]:
                        self._fail(other, error)
                    break
        if failed is not None:
            self._bound(failed)

    def _fail(self, item: QueuedRun, error: Exception) -> None:
        self._error = error
        was_unwritten = self._unwritten.pop(item.run.id, None) is not None
        if not isinstance(error, StoreError):  # the run itself cannot be written; a retry would fail too
            self._lose(item, error)
            return
        if not was_unwritten:
            self._again = time.monotonic() + _RETRY
            self.failed(item.run, error, False)
        self._unwritten[item.run.id] = item

    def _bound(self, error: Exception) -> None:
        """Gives up runs beyond those that may wait: the oldest of the owner that has the most."""
        held: dict[str | None, float] = {}  # by owner: of what may wait
        tokens = 0
        for item in self._unwritten.values():
            held[item.owner] = held.get(item.owner, 0.0) + _share(item)
            tokens += len(item.run.tokens)
        while len(self._unwritten) > 1 and (len(self._unwritten) > MOST_UNWRITTEN or tokens > MOST_TOKENS):
            greedy = max(held, key=held.__getitem__)
            oldest = next(item for item in self._unwritten.values() if item.owner == greedy)
            del self._unwritten[oldest.run.id]
            held[greedy] -= _share(oldest)
            tokens -= len(oldest.run.tokens)
            self._lose(oldest, error)

    def _lose(self, item: QueuedRun, error: Exception) -> None:
        self._lost += 1
        self.failed(item.run, error, True)

    def _do(self, job: _Job) -> None:
        waiting = self._unwritten.get(job.without or "")
        if waiting is not None and job.owner in (None, waiting.owner):
            del self._unwritten[waiting.run.id]
        if not job.done.set_running_or_notify_cancel():
            return
        try:
            job.done.set_result(job.work())
        except Exception as error:
            job.done.set_exception(error)

    def _give_up(self) -> None:
        if self._unwritten:
            self._attempt(list(self._unwritten.values()))
        for item in list(self._unwritten.values()):
            self._lose(item, self._error or RuntimeError("it could not be written"))
        self._unwritten.clear()


def _share(item: QueuedRun) -> float:
    """Returns how much of what may wait a run is."""
    return 1 / MOST_UNWRITTEN + len(item.run.tokens) / MOST_TOKENS


def _is_busy(error: Exception) -> bool:
    return isinstance(error, StoreError) and error.busy


def _flush_at_exit(reference: weakref.ref[StoreWriter]) -> None:
    writer = reference()
    if writer is None:
        return
    try:
        writer.flush()
    except GlassloopError as error:
        print(f"glassloop: {error}", file=sys.stderr)
