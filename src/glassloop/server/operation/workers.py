"""Threads for work that would hold up the event loop, in pools with bounded queues.

Each kind of work has a pool of its own, so that slow work of one kind never delays another: short
preparations go on while long ones wait for each other. No client can hold all threads of a pool for long
work, or all places in its queue.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from threading import Lock
from typing import ParamSpec, TypeVar

from glassloop.engine.thread import Busy

P = ParamSpec("P")
T = TypeVar("T")


class Workers:
    """A pool of threads with a bounded queue."""

    def __init__(self, name: str, threads: int, waiting: int) -> None:
        self._pool = ThreadPoolExecutor(threads, f"glassloop {name}")
        self._name = name
        self._most = threads + waiting
        self._count = 0  # calls that wait or run
        self._lock = Lock()
        self._share = max(1, threads // 2)  # threads that one client may hold
        # By client, on the event loop: calls that wait or run, and places for those that run.
        self._calls: Counter[str] = Counter()
        self._gates: dict[str, asyncio.Semaphore] = {}

    async def run(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Returns what the function returns, called on a thread of the pool.

        Raises `Busy` when the queue is full. If the caller is cancelled, a call that still waits is dropped;
        one that runs goes on to its end.
        """
        return await asyncio.wrap_future(self._submit(partial(function, *args, **options)))

    async def run_for(self, client: str, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Returns what `run` does. At most half of the threads work for one client at a time, and half of the
        queue is for its calls. To be called on the event loop."""
        if self._calls[client] >= self._most // 2:
            raise Busy(f"{self._calls[client]} requests of this client are waiting for {self._name}")
        loop = asyncio.get_running_loop()
        gate = self._gates.setdefault(client, asyncio.Semaphore(self._share))
        self._calls[client] += 1
        try:
            await gate.acquire()
        except BaseException:
            self._leave(client)
            raise
        try:
            future = self._submit(partial(function, *args, **options))
        except BaseException:
            self._leave(client, gate)
            raise
        # A call whose caller has gone holds its thread until it returns.
        future.add_done_callback(lambda _: _call_soon(loop, self._leave, client, gate))
        return await asyncio.wrap_future(future)

    def _leave(self, client: str, gate: asyncio.Semaphore | None = None) -> None:
        if gate is not None:
            gate.release()
        self._calls[client] -= 1
        if not self._calls[client]:
            del self._calls[client], self._gates[client]

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        with self._lock:
            if self._count >= self._most:
                raise Busy(
                    f"{self._count} requests are waiting for {self._name}; at most {self._most} are allowed"
                )
            self._count += 1
        # With the context of the caller, which has the owner of the requests that are made there.
        context = copy_context()
        future = self._pool.submit(lambda: context.run(work))
        future.add_done_callback(self._done)
        return future

    def _done(self, future: object) -> None:
        with self._lock:
            self._count -= 1

    def close(self) -> None:
        """Drops the calls that wait, and does not wait for those that run."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> None:
    with suppress(RuntimeError):  # the server has ended, and its loop is closed
        loop.call_soon_threadsafe(function, *args)


class Pools:
    """The pools of a server."""

    def __init__(self) -> None:
        self.short = Workers("preparation", threads=4, waiting=1024)  # a few milliseconds each
        self.chat = Workers("chat templates", threads=4, waiting=1024)  # as short, unless a template is slow
        # One client has half of these, and of those below that take long (`run_for`).
        self.long = Workers("long preparation", threads=4, waiting=64)  # large bodies, grammars
        self.rendering = Workers("large answers", threads=2, waiting=256)
        self.searching = Workers("searches", threads=8, waiting=256)  # extractors, verifiers, decisions
        self.finding = Workers("searches of the list of runs", threads=2, waiting=8)  # seconds each
        self.reading = Workers("explanations, lenses and embeddings", threads=16, waiting=128)
        # These take seconds to minutes, in which their threads wait for the engine.
        self.editing = Workers("edits", threads=16, waiting=64)
        self.removing = Workers("removals", threads=1, waiting=1024)  # of runs, from the engine

    def close(self) -> None:
        for pool in vars(self).values():
            pool.close()
