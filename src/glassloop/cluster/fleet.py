"""The fleet: the side of an ingress. It watches the replicas, and has an event loop on a thread of its own,
for requests (`streams.py`), questions (`calls.py`) and what replicas tell (`channels.py`).
`submit`, `cancel` and `ask` may be called from any thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any, TypeVar

from glassloop.cluster.board import Board
from glassloop.cluster.calls import Calls, OnEvent
from glassloop.cluster.channels import Channels
from glassloop.cluster.messages import Bulletin, Identity, Needs, Question, Transport
from glassloop.cluster.run_stream import Delivery
from glassloop.cluster.streams import ReplicaStreams
from glassloop.engine.protocol import Handover, Statistics, Unavailable
from glassloop.engine.request import Request
from glassloop.engine.thread import Busy
from glassloop.errors import GlassloopError
from glassloop.record.run import Run
from glassloop.record.token import Pieces

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
STALL = 5.0  # seconds without a sign of life, after which the requests of a replica are moved
PATIENCE = 60.0  # seconds that a request waits for an equal replica
_LOOK = 0.2  # seconds between two looks at the replicas


class Fleet:
    """The engine of a model that replicas compute: the requests and questions of one ingress. `ClusterModel`
    describes the options."""

    def __init__(
        self,
        transport: Transport,
        board: Board,
        pieces: Pieces,
        *,
        most_waiting: int = 1024,
        stall: float = STALL,
        patience: float = PATIENCE,
    ) -> None:
        self.most_waiting = most_waiting
        self._board = board
        self._identity: Identity | None = None
        session, numbers = os.urandom(8).hex(), count()

        def next_key() -> str:
            return f"{session}-{next(numbers)}"

        delivery = Delivery(pieces)
        self._calls = Calls(transport, board, next_key, patience)
        self._streams = ReplicaStreams(transport, board, delivery, session, next_key, stall, patience)
        self._channels = Channels(
            transport,
            board,
            session,
            stall,
            hear=self._hear,
            lost=self._streams.lost,
            is_needed=self._streams.are_on,
        )
        self._closing = False
        self._door = threading.Lock()  # what passes before it is closed is ended by `close`
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="glassloop cluster", daemon=True)
        board.on_routed = lambda key, replica: self._post(self._routed, key, replica)
        board.on_change = lambda: self._post(self._look_at_replicas)
        self._thread.start()
        self._post(self._begin)

    # ── for any thread ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def most_running(self) -> int:
        return self.most_waiting

    def submit(self, request: Request, may_refuse: bool = True) -> None:
        waiting = sum(request.started is None for request in self._streams.requests)
        if may_refuse and waiting >= self.most_waiting:
            raise Busy(f"{waiting} requests are waiting already; at most {self.most_waiting} are allowed")
        name, run = request.sampling.adapter, request.runs[0]
        needs = Needs(self.identity, None if name is None else (name, run.adapters[name]))
        with self._door:
            self._check_open()
            self._post(self._add, request, needs)

    def cancel(self, request: Request, wait: bool = False, run: Run | None = None) -> None:
        """Ends a request as cancelled, or one run of it, if it is no beam search. From inside its listener,
        no later token is delivered. With `wait`, returns when nothing is computed for it any more."""
        if run is not None and request.sampling.beam_width == 1:
            self._post(self._cancel_run, request, run)
            return
        self._streams.expect_cancel(request)
        self._post(self._cancel, request)
        if wait and threading.current_thread() is not self._thread:
            with suppress(RuntimeError):
                self.call(self._gone(request)).result()

    def check_may_wait(self) -> None:
        """Raises on the fleet's own thread, on which listeners are called."""
        if threading.current_thread() is self._thread:
            raise GlassloopError(
                "a call that waits for the engine was made on the engine's thread, by a listener; it is"
                " expected on another thread"
            )

    def ask(self, question: Question, on_event: OnEvent | None = None) -> Future[bytes]:
        """Returns the answer of some replica. If one dies meanwhile, another is asked. `on_event` is called
        on the fleet's thread: it must be quick."""
        with self._door:
            self._check_open()
            return self.call(self._calls.ask(question, on_event))

    def call(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    @property
    def identity(self) -> Identity:
        """The model and the op set of new requests: as before, as long as a replica has them."""
        if self._identity is None or not self._board.usable(Needs(self._identity)):
            reports = self._board.usable_reports()
            if reports:
                self._identity = reports[0].identity
        if self._identity is None:
            raise Unavailable("no replica has reported yet")
        return self._identity

    def statistics(self, model: str) -> list[Statistics]:
        # The name that the replicas know may be a path.
        reports = sorted(self._board.reports.items())
        return [replace(report.statistics, model=model) for _, report in reports]

    def handovers(self) -> list[Handover]:
        return list(self._streams.handovers)

    def close(self) -> None:
        """Ends all requests as cancelled, and the thread."""
        with self._door:
            if self._closing:
                return
            self._closing = True
        with suppress(RuntimeError, TimeoutError):
            self.call(self._end()).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _check_open(self) -> None:
        if self._closing:
            raise GlassloopError("this engine is closed")

    def _post(self, function: Any, *args: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *args)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _end(self) -> None:
        for request in self._streams.requests:
            self._cancel(request)
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.wait([*tasks, asyncio.create_task(asyncio.sleep(0))], timeout=5)

    # ── requests ───────────────────────────────────────────────────────────────────────────────────────────

    def _add(self, request: Request, needs: Needs) -> None:
        if isinstance(request.built, GlassloopError):
            request.fail(request.built)
        else:
            self._streams.add(request, needs)

    def _cancel(self, request: Request) -> None:
        self._streams.cancel(request, at_once=self._closing)

    def _cancel_run(self, request: Request, run: Run) -> None:
        self._streams.cancel_run(request, run)

    async def _gone(self, request: Request) -> None:
        """Waits until nothing is computed for a request."""
        while request in self._streams.requests and not request.ended:
            await asyncio.sleep(0.02)

    # ── replicas ───────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self) -> None:
        self._watching = self._loop.create_task(self._watch())
        self._look_at_replicas()

    def _look_at_replicas(self) -> None:
        self._channels.update()
        self._streams.move_drained()

    def _hear(self, name: str, bulletin: Bulletin) -> None:
        if bulletin.report is not None:
            self._board.report(name, bulletin.report)
        for news in bulletin.news:
            self._streams.hear(name, news)

    def _routed(self, key: str, replica: str) -> None:
        """Notes which replica has a job or a question."""
        if not self._calls.routed(key, replica):
            self._streams.routed(key, replica)

    async def _watch(self) -> None:
        """Moves the requests of replicas that give no sign of life, and ends those that wait for too long."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK)
            now = time.monotonic()
            if now - last > 1.0:  # this process had no time: it could not have heard anything
                self._channels.forgive(now - last)
            last = now
            try:
                self._look_at_replicas()
                self._channels.suspect_silent()
                self._streams.look(now, self._channels.answers)
                self._calls.look(now, self._channels.answers)
            except Exception:  # the next look must come whatever was wrong with this one
                _LOG.exception("the replicas could not be watched")
