"""The streams of an ingress: requests that replicas compute, each moved to another replica where needed.

A token depends on the request, its options and its position alone. So a request whose replica has died, does
not answer or is shut down goes on elsewhere from the tokens that have been delivered, with the same tokens as
if nothing had happened. Every attempt has a key of its own: what an earlier one still tells is ignored.

All of it runs on the event loop of the fleet.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter

from glassloop.cluster.board import Board
from glassloop.cluster.calls import MOST_DEATHS
from glassloop.cluster.messages import Gone, Job, Needs, News, Transport
from glassloop.cluster.run_stream import Delivery, Stream, held_back
from glassloop.decode.stop import Ending
from glassloop.diffuse.write import DiffusionRequest
from glassloop.engine.loop import computes
from glassloop.engine.protocol import Handover, Unavailable
from glassloop.engine.request import Request
from glassloop.engine.tasks.task import CANCELLED
from glassloop.errors import contained
from glassloop.record.passes import PassRecord
from glassloop.record.run import Run
from glassloop.record.run_parts import Move

_RETRY = 0.5  # seconds before a replica that could not be reached is tried again
_KEPT = 1000  # hand-overs that are remembered


class ReplicaStreams:
    """The open streams of an ingress, which replicas know as `session`. `ClusterModel` describes `stall` and
    `patience`."""

    def __init__(
        self,
        transport: Transport,
        board: Board,
        delivery: Delivery,
        session: str,
        next_key: Callable[[], str],
        stall: float,
        patience: float,
    ) -> None:
        self._transport = transport
        self._board = board
        self._delivery = delivery
        self._session = session
        self._next_key = next_key
        self._stall = stall
        self._patience = patience
        self._open: dict[str, Stream] = {}  # by the key of their job
        self._of_request: dict[Request, list[Stream]] = {}
        self._telling: set[asyncio.Task[None]] = set()  # of replicas, that a run has ended
        self.handovers: deque[Handover] = deque(maxlen=_KEPT)

    @property
    def requests(self) -> list[Request]:
        """The requests that have not ended."""
        return list(self._of_request)

    # ── jobs ───────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, request: Request, needs: Needs) -> None:
        self._of_request[request] = []
        kept = {run: len(run.tokens) for run in request.runs}
        self._launch(Stream(request, list(request.runs), needs, kept))

    def _launch(self, stream: Stream) -> None:
        """Sends the job of a stream to whichever replica the router chooses."""
        stream.key, stream.replica = self._next_key(), None
        self._open[stream.key] = stream
        self._board.begin(stream.key, len(stream.runs))
        streams = self._of_request[stream.request]
        if stream not in streams:
            streams.append(stream)
        stream.task = asyncio.create_task(self._run(stream, stream.job(self._session)))

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
                    self._board.suspect(stream.replica)
                else:
                    await asyncio.sleep(_RETRY)
                self._move(stream, "died")
        except Exception as error:
            self._fail(stream, error)

    def routed(self, key: str, replica: str) -> None:
        """Notes which replica has a job."""
        stream = self._open.get(key)
        if stream is None or stream.replica == replica:
            return
        if stream.replica is not None:
            # Ray Serve has lost the answer of the first replica and sent the same job to another one, which
            # would begin where the job began: a new job continues from the tokens of the first.
            self._move(stream, "died")
            return
        stream.replica, stream.since = replica, time.monotonic()
        self._board.place(key, replica)
        self._board.note(replica, stream.runs[0].prompt_ids, stream.space)
        if stream.moved is not None:
            source, reason, when = stream.moved
            stream.moved = None
            tokens = sum(len(run.tokens) for run in stream.runs)
            seconds = time.monotonic() - when
            first, owner = stream.runs[0].id, stream.request.owner
            self.handovers.append(
                Handover(time.time(), first, tokens, source, replica, reason, seconds, owner)
            )
            for run in stream.runs:
                run.moves.append(Move(len(run.tokens), source, replica, reason))

    def _forget(self, stream: Stream) -> None:
        """Takes back the job of a stream. What it tells later is ignored."""
        self._open.pop(stream.key, None)
        self._board.end(stream.key)
        if stream.replica is not None:
            first = stream.runs[0]
            self._board.note(stream.replica, (*first.prompt_ids, *first.token_ids), stream.space)
            stream.replica = None
        if stream.task is not None and stream.task is not asyncio.current_task():
            stream.task.cancel()
        stream.task = None

    def _move(self, stream: Stream, reason: str) -> None:
        """Continues a stream on another replica, from the tokens that have been delivered."""
        if stream.key not in self._open or stream.ended:
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

    # ── replicas ───────────────────────────────────────────────────────────────────────────────────────────

    def are_on(self, name: str) -> bool:
        """Returns whether a replica has any stream."""
        return any(stream.replica == name for stream in self._open.values())

    def lost(self, name: str) -> None:
        """Moves the streams of a replica that has died."""
        for stream in [each for each in self._open.values() if each.replica == name]:
            self._move(stream, "died")

    def move_drained(self) -> None:
        """Moves the streams of replicas that shut down."""
        for stream in list(self._open.values()):
            is_drained = stream.replica is not None and stream.replica not in self._board.replicas
            if is_drained and self._board.usable(stream.needs):
                self._move(stream, "drained")

    def look(self, now: float, answers: Callable[[str], bool]) -> None:
        """Moves the streams of replicas that do not answer, and ends those that wait for too long."""
        for stream in list(self._open.values()):
            self._look_at(stream, now, answers)

    def _look_at(self, stream: Stream, now: float, answers: Callable[[str], bool]) -> None:
        """Moves a stream whose replica does not answer, if there is another one, and ends one that waits for
        too long. Without another one the replica may still wake up, and go on."""
        if stream.replica is not None and answers(stream.replica):
            stream.since = now
            return
        usable = self._board.usable(stream.needs)
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
        if self._board.usable():
            what = "model, op set and adapter" if stream.needs.adapter else "model and op set"
            return f"no replica with the same {what} as before could be reached {seconds}"
        return f"no replica could be reached {seconds}"

    # ── what comes back ────────────────────────────────────────────────────────────────────────────────────

    def hear(self, name: str, news: News) -> None:
        """Takes what a replica tells of a run."""
        stream = self._open.get(news.key)
        if stream is None:
            return
        if stream.replica is None:
            self.routed(news.key, name)
        if stream.replica != name:  # two replicas have the job: one of them is listened to
            return
        stream.since = time.monotonic()
        news = stream.without_told(news)
        if not stream.by_masks or news.tokens or news.pass_record is not None:
            stream.deaths = 0
        if stream.request.started is None:
            stream.request.started = perf_counter()
        if not stream.is_beam:
            self._deliver(stream, news)
            return
        stream.waiting.append(news)
        if sum(each.end is not None for each in stream.waiting) == len(stream.runs):
            self._deliver_beams(stream)

    def _deliver(self, stream: Stream, news: News) -> None:
        """Adds tokens to a run and tells the listener."""
        request, run = stream.request, stream.runs[news.run]
        if run.finish_reason is not None or run in stream.over:
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
                # As in an engine: a run has ended when its last token is told.
                self._delivery.finish(run, news.end)
                stream.over.add(run)
                self._let_go(stream)
            request.tell(run, token)
        if news.pass_record is not None:
            self._deliver_pass(stream, run, news.pass_record)
        if news.taken_back is not None:
            request.tell_taken_back(run, stream.take_back(run, *news.taken_back))
        if news.end is not None:
            if not news.tokens:
                self._delivery.finish(run, news.end)
                stream.over.add(run)
                self._let_go(stream)
            request.tell(run, None)

    def _deliver_pass(self, stream: Stream, run: Run, record: PassRecord) -> None:
        """Adds a pass over masks to a run and calls `on_pass`."""
        request = stream.request
        if stream.cancelled:
            self._end_here(stream, CANCELLED)
            return
        run.add_pass(record)
        if isinstance(request, DiffusionRequest) and request.on_pass is not None:
            try:
                request.on_pass(run, record)
            except BaseException as error:  # the fleet's thread serves others too
                self._fail(stream, contained(error, "on_pass"))

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
        for news in stream.waiting:
            if news.prompt:
                self._delivery.prompt(news.prompt, stream.runs, stream.runs[news.run])
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

    def expect_cancel(self, request: Request) -> None:
        """Makes the next token of a request, if one comes before `cancel`, end it. For any thread."""
        for stream in list(self._of_request.get(request, ())):
            stream.cancelled = True

    def cancel(self, request: Request, at_once: bool = False) -> None:
        """Ends a request as cancelled. Unless `at_once`, the replica of a beam search is asked for the texts
        that it has by now."""
        self.expect_cancel(request)
        for stream in list(self._of_request.get(request, ())):
            if stream.is_beam and stream.replica is not None and not at_once:
                stream.ending = asyncio.create_task(self._cancel_beams(stream, stream.replica))
            else:
                self._end_here(stream, CANCELLED)

    def cancel_run(self, request: Request, run: Run) -> None:
        """Ends one run of a request as cancelled."""
        for stream in list(self._of_request.get(request, ())):
            place = next((at for at, each in enumerate(stream.runs) if computes(each, run)), None)
            if place is None or stream.runs[place] not in stream.open_runs:
                continue
            run = stream.runs[place]
            if stream.replica is not None:
                telling = asyncio.create_task(self._cancel_there(stream.replica, stream.key, place))
                self._telling.add(telling)
                telling.add_done_callback(self._telling.discard)
            run.tail = held_back(request, run)
            run.finish_reason, run.stop_reason = CANCELLED
            stream.over.add(run)
            self._let_go(stream)
            request.tell(run, None)

    async def _cancel_there(self, replica: str, key: str, place: int) -> None:
        """Lets a replica stop computing a run; if it does not hear of that, what it tells is ignored."""
        with suppress(Gone):
            await self._transport.cancel(replica, key, self._session, place)

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
        open_runs = stream.open_runs
        for run in open_runs:
            if not stream.is_beam:
                run.tail = held_back(stream.request, run)
            run.finish_reason, run.stop_reason = ending.reason, ending.detail
        self._close(stream.request)
        for run in open_runs:
            stream.request.tell(run, None)

    def _fail(self, stream: Stream, error: Exception) -> None:
        if stream.key in self._open:
            self._fail_open(stream, error)

    def _fail_open(self, stream: Stream, error: Exception) -> None:
        """Ends the runs of a stream that have not ended with an error."""
        for run in stream.open_runs:
            run.error = error
        self._end_here(stream, Ending("error", str(error)))

    def _close(self, request: Request) -> None:
        """Forgets a request that no open stream computes."""
        if all(stream.key not in self._open for stream in self._of_request.get(request, ())):
            self._of_request.pop(request, None)
