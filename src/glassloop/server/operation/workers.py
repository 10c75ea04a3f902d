"""Threads for work that would hold up the event loop, in pools with bounded queues.

Each kind of work has a pool of its own, so that slow work of one kind never delays another: short
preparations go on while long ones wait for each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
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

    async def run(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Returns what the function returns, called on a thread of the pool.

        Raises `Busy` when the queue is full. If the caller is cancelled, a call that still waits is dropped;
        one that runs goes on to its end.
        """
        with self._lock:
            if self._count >= self._most:
                raise Busy(
                    f"{self._count} requests are waiting for {self._name}; at most {self._most} are allowed"
                )
            self._count += 1
        # With the context of the caller, which has the owner of the requests that are made there.
        context = copy_context()
        future = self._pool.submit(lambda: context.run(function, *args, **options))
        future.add_done_callback(self._done)
        return await asyncio.wrap_future(future)

    def _done(self, future: object) -> None:
        with self._lock:
            self._count -= 1

    def close(self) -> None:
        """Drops the calls that wait, and does not wait for those that run."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Pools:
    """The pools of a server."""

    def __init__(self) -> None:
        self.short = Workers("preparation", threads=4, waiting=1024)  # a few milliseconds each
        self.chat = Workers("chat templates", threads=4, waiting=1024)  # as short, unless a template is slow
        self.long = Workers("long preparation", threads=2, waiting=32)  # large bodies, grammars
        self.rendering = Workers("large answers", threads=2, waiting=256)
        self.searching = Workers("searches", threads=4, waiting=256)  # extractors, verifiers, decisions
        self.reading = Workers("explanations, lenses and embeddings", threads=8, waiting=64)
        self.editing = Workers("edits", threads=4, waiting=32)  # these take seconds to minutes
        self.removing = Workers("removals", threads=1, waiting=1024)  # of runs, from the engine

    def close(self) -> None:
        for pool in vars(self).values():
            pool.close()
