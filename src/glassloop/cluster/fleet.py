"""The fleet: the requests of one ingress, each computed by some replica, and moved to another where needed.

A token depends on the request, its options and its position alone. So a request whose replica has died, does
not answer or is shut down goes on elsewhere from the tokens that have been delivered, with the same tokens as
if nothing had happened. Every attempt has a key of its own: what an earlier one still tells is ignored.

All of it runs on an event loop on a thread of its own; `submit` and `cancel` may be called from any thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from time import perf_counter
from typing import Any, Protocol, TypeVar

from glassloop.cluster.board import Board
from glassloop.cluster.messages import (
    Bulletin,
    End,
    Gone,
    Identity,
    Job,
    News,
    Question,
    TokenData,
)
from glassloop.cluster.stream import Stream
from glassloop.decode.chosen import Chosen
from glassloop.decode.stop import Ending
from glassloop.engine.protocol import Handover, Unavailable
from glassloop.engine.request import Request
from glassloop.engine.task import CANCELLED
from glassloop.errors import GlassloopError
from glassloop.trace.run import Move, Run
from glassloop.trace.token import Pieces, Token

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
STALL = 5.0  # seconds without a sign of life, after which the requests of a replica are moved
PATIENCE = 60.0  # seconds that a request waits for an equal replica
_LOOK = 0.2  # seconds between two looks at the replicas
_RETRY = 0.5  # seconds before a replica that could not be reached is tried again
_KEPT = 1000  # hand-overs that are remembered


class Transport(Protocol):
    """The way to the replicas. A replica that cannot be reached is a `Gone`."""

    async def start(self, job: Job) -> None:
        """Computes a job on a replica of the router's choice; returns when it has ended. If the caller stops
        waiting, the job is cancelled."""

    async def cancel(self, replica: str, key: str, session: str) -> None: ...

    def open(self, replica: str, session: str) -> AsyncIterator[Bulletin]: ...

    async def ask(self, question: Question) -> Any: ...


class Fleet:
    def __init__(
        self,
        transport: Transport,
        board: Board,
        pieces: Pieces,
        *,
        stall: float = STALL,
        patience: float = PATIENCE,
    ) -> None:
        self.board = board
        self._transport = transport
        self._pieces = pieces
        self._stall = stall
        self._patience = patience
        self._session = os.urandom(8).hex()
        self._numbers = count()
        self._streams: dict[str, Stream] = {}  # by the key of their job
        self._of_request: dict[Request, list[Stream]] = {}
        self._channels: dict[str, asyncio.Task[None]] = {}
        self._heard: dict[str, float] = {}
        self._handovers: deque[Handover] = deque(maxlen=_KEPT)
        self._closing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="glassloop cluster", daemon=True)
        board.on_routed = lambda key, replica: self._post(self._routed, key, replica)
        board.on_change = lambda: self._post(self._look_at_replicas)
        self._thread.start()
        self._post(self._begin)

    # ── for any thread ─────────────────────────────────────────────────────────────────────────────────────

    def submit(self, request: Request, identity: Identity) -> None:
        self._post(self._add, request, identity)

    def cancel(self, request: Request) -> None:
        """Ends a request as cancelled. From inside its listener, no later token is delivered."""
        for stream in list(self._of_request.get(request, ())):
            stream.cancelled = True
        self._post(self._cancel, request)

    def ask(self, question: Question) -> Future[Any]:
        """Returns the answer of some replica. If one dies meanwhile, another is asked."""
        return self.call(self._ask(question))

    def call(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    @property
    def open_requests(self) -> int:
        return len(self._of_request)

    @property
    def unstarted(self) -> int:
        return sum(request.started is None for request in list(self._of_request))

    def handovers(self) -> list[Handover]:
        return list(self._handovers)

    def close(self) -> None:
        """Ends all requests as cancelled, and the thread."""
        if self._closing:
            return
        self._closing = True
        with suppress(RuntimeError):
            self.call(self._end()).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

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
        for request in list(self._of_request):
            self._cancel(request)
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.wait([*tasks, asyncio.create_task(asyncio.sleep(0))], timeout=5)

    # ── replicas ───────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self) -> None:
        self._watching = self._loop.create_task(self._watch())
        self._look_at_replicas()

    def _look_at_replicas(self) -> None:
        """Listens to every replica that is new, and moves the requests of those that shut down."""
        for name in self._channels.keys() - self.board.replicas:
            if not self._streams_of(name):
                self._channels[name].cancel()  # it would keep the replica from ending
        for name in self.board.replicas - self._channels.keys():
            self._heard[name] = time.monotonic()
            self._channels[name] = self._loop.create_task(self._listen(name))
        for stream in list(self._streams.values()):
            is_drained = stream.replica is not None and stream.replica not in self.board.replicas
            if is_drained and self.board.usable(stream.identity):
                self._move(stream, "drained")

    async def _listen(self, name: str) -> None:
        """Hears what a replica tells, as long as there is one."""
        try:
            while name in self.board.replicas or self._streams_of(name):
                try:
                    async for bulletin in self._transport.open(name, self._session):
                        self._hear(name, bulletin)
                except Exception as error:
                    if not isinstance(error, Gone):
                        _LOG.exception("the stream of replica %s has failed", name)
                    self.board.suspect(name)
                    for stream in self._streams_of(name):
                        self._move(stream, "died")
                    await asyncio.sleep(_RETRY)
        finally:
            self._channels.pop(name, None)
            self._heard.pop(name, None)

    async def _watch(self) -> None:
        """Moves the requests of replicas that give no sign of life, and ends those that wait for too long."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK)
            now = time.monotonic()
            if now - last > 1.0:  # this process had no time: it could not have heard anything
                for name in self._heard:
                    self._heard[name] += now - last
            last = now
            try:
                self._look_at_replicas()
                for name, heard in list(self._heard.items()):
                    if now - heard > self._stall:
                        self.board.suspect(name)
                for stream in list(self._streams.values()):
                    self._look_at(stream, now)
            except Exception:  # the next look must come whatever was wrong with this one
                _LOG.exception("the replicas could not be watched")

    def _look_at(self, stream: Stream, now: float) -> None:
        """Moves a stream whose replica does not answer, if there is another one, and ends one that waits for
        too long. Without another one the replica may still wake up, and go on."""
        heard = -1e9 if stream.replica is None else self._heard.get(stream.replica, -1e9)
        answers, usable = now - heard <= self._stall, self.board.usable(stream.identity)
        if answers or usable:
            stream.since = now
        if answers:
            return
        if stream.replica is not None and usable:
            self._move(stream, "stalled")
            return
        ending = stream.request.overdue()
        if ending is not None:
            self._end_here(stream, ending)
        elif now - stream.since > self._patience:
            self._fail(stream, Unavailable(self._no_replica(stream)))

    def _no_replica(self, stream: Stream) -> str:
        seconds = f"for {self._patience:g} s"
        if self.board.usable():
            return f"no replica with the same model and op set as before could be reached {seconds}"
        return f"no replica could be reached {seconds}"

    def _streams_of(self, name: str) -> list[Stream]:
        return [stream for stream in self._streams.values() if stream.replica == name]

    # ── jobs ───────────────────────────────────────────────────────────────────────────────────────────────

    def _add(self, request: Request, identity: Identity) -> None:
        self._of_request[request] = []
        if isinstance(request.built, GlassloopError):
            request.fail(request.built)
            self._close(request)
            return
        kept = {run: len(run.tokens) for run in request.runs}
        self._launch(Stream(request, list(request.runs), identity, kept))

    def _launch(self, stream: Stream) -> None:
        """Sends the job of a stream to whichever replica the router chooses."""
        stream.key, stream.replica = f"{self._session}-{next(self._numbers)}", None
        self._streams[stream.key] = stream
        streams = self._of_request[stream.request]
        if stream not in streams:
            streams.append(stream)
        stream.task = self._loop.create_task(self._run(stream, stream.job(self._session)))

    async def _run(self, stream: Stream, job: Job) -> None:
        try:
            await self._transport.start(job)
            # What it has told comes by the stream of bulletins, which may take a moment longer.
        except Gone:
            if stream.key == job.key:
                if stream.replica is not None:
                    self.board.suspect(stream.replica)
                else:
                    await asyncio.sleep(_RETRY)
                self._move(stream, "died")
        except Exception as error:
            self._fail(stream, error)

    def _routed(self, key: str, replica: str) -> None:
        """Notes which replica has a job."""
        stream = self._streams.get(key)
        if stream is None or stream.replica == replica:
            return
        if stream.replica is not None:
            self.board.add_load(stream.replica, -len(stream.runs))
        stream.replica, stream.since = replica, time.monotonic()
        self.board.add_load(replica, len(stream.runs))
        self.board.note(replica, tuple(stream.runs[0].prompt_ids))
        if stream.moved is not None:
            source, reason, when = stream.moved
            stream.moved = None
            told = sum(len(run.tokens) for run in stream.runs)
            seconds = time.monotonic() - when
            first = stream.runs[0].id
            self._handovers.append(Handover(time.time(), first, told, source, replica, reason, seconds))
            for run in stream.runs:
                run.moves.append(Move(len(run.tokens), source, replica, reason))

    def _forget(self, stream: Stream) -> None:
        """Takes back the job of a stream. What it tells later is ignored."""
        self._streams.pop(stream.key, None)
        if stream.replica is not None:
            self.board.add_load(stream.replica, -len(stream.runs))
            first = stream.runs[0]
            self.board.note(stream.replica, (*first.prompt_ids, *first.token_ids))
            stream.replica = None
        if stream.task is not None and stream.task is not asyncio.current_task():
            stream.task.cancel()
        stream.task = None

    def _move(self, stream: Stream, reason: str) -> None:
        """Continues a stream on another replica, from the tokens that have been delivered."""
        if stream.key not in self._streams or stream.ended:
            return
        source = stream.replica or (stream.moved[0] if stream.moved else "")
        since = stream.moved[2] if stream.moved else time.monotonic()
        self._forget(stream)
        if stream.cancelled:
            self._end_here(stream, CANCELLED)
            return
        stream.waiting.clear()
        self._of_request[stream.request].remove(stream)
        for moved in stream.continued():
            moved.moved = (source, reason, since) if source else None
            self._launch(moved)

    # ── what comes back ────────────────────────────────────────────────────────────────────────────────────

    def _hear(self, name: str, bulletin: Bulletin) -> None:
        self._heard[name] = time.monotonic()
        self.board.suspect(name, False)
        if bulletin.report is not None:
            self.board.report(name, bulletin.report)
        for news in bulletin.news:
            stream = self._streams.get(news.key)
            if stream is None:
                continue
            if stream.replica is None:
                self._routed(news.key, name)
            stream.since = time.monotonic()
            if stream.request.started is None:
                stream.request.started = perf_counter()
            if not stream.is_beam:
                self._deliver(stream, news)
                continue
            stream.waiting.append(news)
            if sum(each.end is not None for each in stream.waiting) == len(stream.runs):
                self._deliver_beams(stream)

    def _deliver(self, stream: Stream, news: News) -> None:
        """Adds tokens to a run and tells the listener."""
        request, run = stream.request, stream.runs[news.run]
        if run.finish_reason is not None:
            return
        stream.count(run, news.facts)
        if news.prompt:
            records = [self._token(each, run) for each in news.prompt]
            for each in stream.runs:
                each.prompt_tokens = each.prompt_tokens or records
        for place, data in enumerate(news.tokens, 1):
            if stream.cancelled:
                self._end_here(stream, CANCELLED)
                return
            token = self._token(data, run)
            run.tokens.append(token)
            if place == len(news.tokens) and news.end is not None:
                self._finish(run, news.end)  # as in an engine: a run has ended when its last token is told
                self._let_go(stream)
            request.tell(run, token)
        if news.end is not None:
            if not news.tokens:
                self._finish(run, news.end)
                self._let_go(stream)
            request.tell(run, None)

    def _let_go(self, stream: Stream) -> None:
        """Forgets a stream whose runs have all ended. To be called before the last of them is told: the
        listener may continue a run at once."""
        if stream.ended:
            self._forget(stream)
            self._close(stream.request)

    def _deliver_beams(self, stream: Stream) -> None:
        """Delivers the result of a beam search, all runs at once."""
        request = stream.request
        ends = {news.run: news.end for news in stream.waiting if news.end is not None}
        request.drop_runs(sum(not end.dropped for end in ends.values()))
        for place, run in enumerate(stream.runs):
            if ends[place].dropped:
                continue
            for news in stream.waiting:
                if news.run == place:
                    stream.count(run, news.facts)
                    run.tokens += [self._token(data, run) for data in news.tokens]
            self._finish(run, ends[place])
            for token in run.tokens:
                request.tell(run, token)
            request.tell(run, None)
        self._forget(stream)
        self._close(request)

    def _token(self, data: TokenData, run: Run) -> Token:
        text, source = data.text, data.source
        chosen = Chosen(data.record)
        return Token(chosen, text, data.bytes, self._pieces, source, data.seconds, run.sample, data.refused)

    def _finish(self, run: Run, end: End) -> None:
        run.tail, run.error, run.beams = end.tail, end.error, end.beams
        run.end = None if end.token is None else self._token(end.token, run)
        run.finish_reason, run.stop_reason = end.reason, end.detail

    # ── the end ────────────────────────────────────────────────────────────────────────────────────────────

    def _cancel(self, request: Request) -> None:
        for stream in list(self._of_request.get(request, ())):
            stream.cancelled = True
            if stream.is_beam and stream.replica is not None and not self._closing:
                # The texts that the search has by now are the replica's to say.
                self._loop.create_task(self._cancel_beams(stream, stream.replica))
            else:
                self._end_here(stream, CANCELLED)

    async def _cancel_beams(self, stream: Stream, replica: str) -> None:
        with suppress(Gone, TimeoutError):
            async with asyncio.timeout(2.0):
                await self._transport.cancel(replica, stream.key, self._session)
                while not stream.ended:
                    await asyncio.sleep(0.02)
        if not stream.ended:
            self._end_here(stream, CANCELLED)

    def _end_here(self, stream: Stream, ending: Ending) -> None:
        """Ends the runs of a stream with the tokens that have been delivered."""
        self._forget(stream)
        open_runs = [run for run in stream.runs if run.finish_reason is None]
        for run in open_runs:
            if not stream.is_beam:
                run.tail = stream.held_back(run)
            run.finish_reason, run.stop_reason = ending.reason, ending.detail
        self._close(stream.request)
        for run in open_runs:
            stream.request.tell(run, None)

    def _fail(self, stream: Stream, error: Exception) -> None:
        if stream.key not in self._streams:
            return
        for run in stream.runs:
            if run.finish_reason is None:
                run.error = error
        self._end_here(stream, Ending("error", str(error)))

    def _close(self, request: Request) -> None:
        if request.ended:
            self._of_request.pop(request, None)

    async def _ask(self, question: Question) -> Any:
        until = time.monotonic() + self._patience
        while True:
            try:
                return await self._transport.ask(question)
            except Gone:
                if time.monotonic() > until:
                    raise Unavailable("no replica could be reached") from None
                await asyncio.sleep(_RETRY)
