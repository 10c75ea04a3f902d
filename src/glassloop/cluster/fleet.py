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
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from time import perf_counter
from typing import Any, TypeVar

from glassloop.cluster.board import Board
from glassloop.cluster.calls import MOST_DEATHS, Calls, OnEvent
from glassloop.cluster.channels import Channels
from glassloop.cluster.delivery import Delivery, held_back
from glassloop.cluster.diffusing import Diffusing
from glassloop.cluster.messages import Bulletin, Gone, Job, Needs, News, Question
from glassloop.cluster.stream import Stream
from glassloop.cluster.transport import Transport
from glassloop.decode.stop import Ending
from glassloop.diffuse.write import DiffusionRequest
from glassloop.engine.protocol import Handover, Unavailable
from glassloop.engine.request import Request
from glassloop.engine.task import CANCELLED
from glassloop.errors import GlassloopError
from glassloop.trace.run import Move
from glassloop.trace.token import Pieces

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
STALL = 5.0  # seconds without a sign of life, after which the requests of a replica are moved
PATIENCE = 60.0  # seconds that a request waits for an equal replica
_LOOK = 0.2  # seconds between two looks at the replicas
_RETRY = 0.5  # seconds before a replica that could not be reached is tried again
_KEPT = 1000  # hand-overs that are remembered


class Fleet:
    """The requests and questions of one ingress. `ClusterEngine` describes `stall` and `patience`."""

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
        self._delivery = Delivery(pieces)
        self._stall = stall
        self._patience = patience
        self._session = os.urandom(8).hex()
        self._numbers = count()
        self._calls = Calls(transport, board, self._next_key, patience)
        self._diffusing = Diffusing(self._calls, self._delivery)
        self._streams: dict[str, Stream] = {}  # by the key of their job
        self._of_request: dict[Request, list[Stream]] = {}
        self._channels = Channels(
            transport,
            board,
            self._session,
            stall,
            hear=self._hear,
            lost=self._lost,
            is_needed=lambda name: bool(self._streams_of(name)),
        )
        self._handovers: deque[Handover] = deque(maxlen=_KEPT)
        self._closing = False
        self._door = threading.Lock()  # what passes before it is closed is ended by `close`
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="glassloop cluster", daemon=True)
        board.on_routed = lambda key, replica: self._post(self._routed, key, replica)
        board.on_change = lambda: self._post(self._look_at_replicas)
        self._thread.start()
        self._post(self._begin)

    # ── for any thread ─────────────────────────────────────────────────────────────────────────────────────

    def submit(self, request: Request, needs: Needs) -> None:
        with self._door:
            self._check_open()
            self._post(self._add, request, needs)

    def cancel(self, request: Request, wait: bool = False) -> None:
        """Ends a request as cancelled. From inside its listener, no later token is delivered. With `wait`,
        returns when nothing is computed for it any more."""
        for stream in list(self._of_request.get(request, ())):
            stream.cancelled = True
        self._post(self._cancel, request)
        if wait and threading.current_thread() is not self._thread:
            with suppress(RuntimeError):
                self.call(self._gone(request)).result()

    def ask(self, question: Question, on_event: OnEvent | None = None) -> Future[bytes]:
        """Returns the answer of some replica. If one dies meanwhile, another is asked. `on_event` is called
        on the fleet's thread: it must be quick."""
        with self._door:
            self._check_open()
            return self.call(self._calls.ask(question, on_event))

    def call(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    @property
    def open_requests(self) -> int:
        return len(self._of_request)

    @property
    def unstarted(self) -> int:
        waiting = [*list(self._of_request), *self._diffusing.requests]
        return sum(request.started is None for request in waiting)

    def handovers(self) -> list[Handover]:
        return list(self._handovers)

    def close(self) -> None:
        """Ends all requests as cancelled, and the thread."""
        with self._door:
            if self._closing:
                return
            self._closing = True
        with suppress(RuntimeError):
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
        for request in [*self._of_request, *self._diffusing.requests]:
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
        """Moves the requests of replicas that shut down."""
        self._channels.update()
        for stream in list(self._streams.values()):
            is_drained = stream.replica is not None and stream.replica not in self.board.replicas
            if is_drained and self.board.usable(stream.needs):
                self._move(stream, "drained")

    def _lost(self, name: str) -> None:
        for stream in self._streams_of(name):
            self._move(stream, "died")

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
                for stream in list(self._streams.values()):
                    self._look_at(stream, now)
                self._calls.look(now, self._channels.answers)
            except Exception:  # the next look must come whatever was wrong with this one
                _LOG.exception("the replicas could not be watched")

    def _look_at(self, stream: Stream, now: float) -> None:
        """Moves a stream whose replica does not answer, if there is another one, and ends one that waits for
        too long. Without another one the replica may still wake up, and go on."""
        if stream.replica is not None and self._channels.answers(stream.replica):
            stream.since = now
            return
        usable = self.board.usable(stream.needs)
        if usable:
            stream.since = now
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
            what = "the same model, op set and adapter" if stream.adapter else "the same model and op set"
            return f"no replica with {what} as before could be reached {seconds}"
        return f"no replica could be reached {seconds}"

    def _streams_of(self, name: str) -> list[Stream]:
        return [stream for stream in self._streams.values() if stream.replica == name]

    # ── jobs ───────────────────────────────────────────────────────────────────────────────────────────────

    def _add(self, request: Request, needs: Needs) -> None:
        self._of_request[request] = []
        if isinstance(request.built, GlassloopError):
            request.fail(request.built)
            self._close(request)
            return
        if isinstance(request, DiffusionRequest):
            del self._of_request[request]
            self._diffusing.add(request, needs)
            return
        kept = {run: len(run.tokens) for run in request.runs}
        self._launch(Stream(request, list(request.runs), needs, kept))

    def _next_key(self) -> str:
        return f"{self._session}-{next(self._numbers)}"

    def _launch(self, stream: Stream) -> None:
        """Sends the job of a stream to whichever replica the router chooses."""
        stream.key, stream.replica = self._next_key(), None
        self._streams[stream.key] = stream
        self.board.begin(stream.key, len(stream.runs))
        streams = self._of_request[stream.request]
        if stream not in streams:
            streams.append(stream)
        stream.task = self._loop.create_task(self._run(stream, stream.job(self._session)))

    async def _run(self, stream: Stream, job: Job) -> None:
        try:
            await self._transport.start(job)
            # The end comes by the stream of bulletins, which may take a moment longer. It does not come if
            # the replica has given up this ingress, because it was not heard of for long.
            await asyncio.sleep(self._stall)
            self._move(stream, "stalled")
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
        """Notes which replica has a job or a question."""
        stream = self._streams.get(key)
        if self._calls.routed(key, replica) or stream is None or stream.replica == replica:
            return
        if stream.replica is not None:
            # Ray Serve has lost the answer of the first replica and sent the same job to another one, which
            # would begin where the job began: a new job continues from the tokens of the first.
            self._move(stream, "died")
            return
        stream.replica, stream.since = replica, time.monotonic()
        self.board.place(key, replica)
        self.board.note(replica, stream.runs[0].prompt_ids, stream.adapter)
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
        self.board.end(stream.key)
        if stream.replica is not None:
            first = stream.runs[0]
            self.board.note(stream.replica, (*first.prompt_ids, *first.token_ids), stream.adapter)
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
        stream.deaths += reason == "died" and stream.replica is not None
        self._forget(stream)
        if stream.cancelled:
            self._end_here(stream, CANCELLED)
            return
        if stream.deaths == MOST_DEATHS:
            why = f"{MOST_DEATHS} replicas have died one after the other, without a token"
            self._fail_open(stream, Unavailable(why))
            return
        stream.waiting.clear()
        if stream.request.sampling.revise:
            for run, taken in stream.take_back_due():
                stream.request.tell_taken_back(run, taken)
        self._of_request[stream.request].remove(stream)
        for moved in stream.continued():
            moved.moved = (source, reason, since) if source else None
            self._launch(moved)

    # ── what comes back ────────────────────────────────────────────────────────────────────────────────────

    def _hear(self, name: str, bulletin: Bulletin) -> None:
        if bulletin.report is not None:
            self.board.report(name, bulletin.report)
        for news in bulletin.news:
            stream = self._streams.get(news.key)
            if stream is None:
                continue
            if stream.replica is None:
                self._routed(news.key, name)
            if stream.replica != name:  # two replicas have the job: one of them is listened to
                continue
            stream.since, stream.deaths = time.monotonic(), 0
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
            self._delivery.prompt(news.prompt, stream.runs, run)
        for place, data in enumerate(news.tokens, 1):
            if stream.cancelled:
                self._end_here(stream, CANCELLED)
                return
            token = self._delivery.token(data, run)
            run.tokens.append(token)
            if place == len(news.tokens) and news.end is not None:
                self._delivery.finish(
                    run, news.end
                )  # as in an engine: a run has ended when its last token is told
                self._let_go(stream)
            request.tell(run, token)
        if news.taken_back is not None:
            request.tell_taken_back(run, stream.take_back(run, *news.taken_back))
        if news.end is not None:
            if not news.tokens:
                self._delivery.finish(run, news.end)
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
                    run.tokens += [self._delivery.token(data, run) for data in news.tokens]
            self._delivery.finish(run, ends[place])
            for token in run.tokens:
                request.tell(run, token)
            request.tell(run, None)
        self._forget(stream)
        self._close(request)

    # ── the end ────────────────────────────────────────────────────────────────────────────────────────────

    def _cancel(self, request: Request) -> None:
        self._diffusing.cancel(request)
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
                run.tail = held_back(stream.request, run)
            run.finish_reason, run.stop_reason = ending.reason, ending.detail
        self._close(stream.request)
        for run in open_runs:
            stream.request.tell(run, None)

    def _fail(self, stream: Stream, error: Exception) -> None:
        if stream.key in self._streams:
            self._fail_open(stream, error)

    def _fail_open(self, stream: Stream, error: Exception) -> None:
        """Ends the runs of a stream that have not ended with an error."""
        for run in stream.runs:
            if run.finish_reason is None:
                run.error = error
        self._end_here(stream, Ending("error", str(error)))

    def _close(self, request: Request) -> None:
        if request.ended:
            self._of_request.pop(request, None)

    async def _gone(self, request: Request) -> None:
        """Waits until nothing is computed for a request."""
        while (request in self._of_request or request in self._diffusing.requests) and not request.ended:
            await asyncio.sleep(0.02)
