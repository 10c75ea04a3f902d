"""A replica: an engine that computes jobs for ingresses, and tells each in one stream what comes of them.

Nothing here knows Ray: `cluster/deployment.py` makes a Ray Serve deployment of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from struct import pack
from time import perf_counter
from typing import Any

from glassloop.cluster.delivery import made_token
from glassloop.cluster.messages import (
    Bulletin,
    End,
    Facts,
    Identity,
    Job,
    News,
    Question,
    Reply,
    Report,
    TokenData,
)
from glassloop.cluster.pickling import dumps, loads
from glassloop.cluster.prefixes import summary
from glassloop.decode.chosen import RECORD, Chosen
from glassloop.engine.deadline import Deadline
from glassloop.engine.llm import LLM
from glassloop.engine.request import Request
from glassloop.engine.tree import Node
from glassloop.errors import GlassloopError
from glassloop.trace.run import Run
from glassloop.trace.token import TakenBack, Token

_LOG = logging.getLogger(__name__)
HEARTBEAT = 0.5  # seconds between two bulletins at most
_GATHER = 0.01  # seconds between two bulletins at least: one carries the tokens of all requests
_GATHER_EACH = 0.005  # seconds more for each open run: a bulletin costs as much as several tokens
_GATHER_MOST = 0.05  # seconds between two bulletins, if there is something to tell
_OPEN_SECONDS = 15.0  # that a stream lasts; the ingress opens the next one, which shows that it is alive
_LEASE = 30.0  # seconds without a stream, after which the jobs of an ingress are ended
_REPORT_EVERY = 1.0  # seconds
_SUMMARY_EVERY = 3.0  # seconds between two looks through the KV tree
_STUCK = 120.0  # seconds that one step may take before the replica is reported as broken


class Replica:
    """One engine among several. All of its coroutines run on the same event loop."""

    def __init__(self, name: str, llm: LLM, node: str | None = None) -> None:
        self.name = name
        self.llm = llm
        self._node = node
        self._sessions: dict[str, _Session] = {}
        self._identity = Identity(llm.model_hash, llm.op_set)  # hashing the files may take a while
        self._room = _most_tokens(llm)
        self._report: Report | None = None
        self._reporting: asyncio.Task[None] | None = None
        # Threads of their own, so that long questions delay neither new jobs nor reports.
        self._reporter = ThreadPoolExecutor(1, "glassloop report")
        self._preparing = ThreadPoolExecutor(2, "glassloop job")
        self._asking = ThreadPoolExecutor(4, "glassloop question")
        self._operating = ThreadPoolExecutor(4, "glassloop operation")  # for questions that take long
        self._prefixes: frozenset[bytes] = frozenset()
        self._digests: dict[Node, bytes] = {}
        self._summed = (-1, 0.0)  # the number of steps and the time of the last look through the tree
        self._progress = (-1, 0.0)  # the number of steps and when it was first seen

    async def start(self, job: Job) -> None:
        """Computes a job; returns when it has ended. The ingress is told of its tokens in `open`. If the
        caller stops waiting, the job is cancelled."""
        session = self._session(job.session)
        loop = asyncio.get_running_loop()
        request = await loop.run_in_executor(self._preparing, self._request, job)
        ended = session.add(job, request)
        try:
            if not isinstance(request.built, GlassloopError):
                self.llm.engine.submit(request, may_refuse=False)
            else:
                request.fail(request.built)
            await ended.wait()
        finally:
            if not request.ended:
                self.llm.cancel(request)
            session.forget(job.key)

    def cancel(self, key: str, session: str) -> None:
        """Ends a job where it is. The ingress is told what it has."""
        request = self._session(session).requests.get(key)
        if request is not None:
            self.llm.cancel(request)

    async def open(self, session: str) -> AsyncIterator[Bulletin]:
        """Yields what an ingress has to know, until it opens the next stream or some seconds have passed."""
        own = self._session(session)
        own.turn += 1
        own.streams += 1
        turn, until = own.turn, time.monotonic() + _OPEN_SECONDS
        told: Report | None = None
        if self._reporting is None:
            self._reporting = asyncio.create_task(self._keep_report())
        try:
            while own.turn == turn and time.monotonic() < until:
                report, told = None if self._report is told else self._report, self._report
                yield Bulletin(own.take(), report)
                await own.news(HEARTBEAT)
        finally:
            own.streams -= 1
            own.seen = time.monotonic()

    async def ask(self, question: Question) -> AsyncIterator[Reply]:
        """Calls the function of a question; yields its events and then its answer. If the caller stops
        listening, the call is cancelled."""
        deadline = Deadline(question.seconds, "the request")
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[bytes | None] = asyncio.Queue()

        def tell(event: Any) -> None:
            loop.call_soon_threadsafe(events.put_nowait, dumps(event))

        pool = self._operating if question.is_long else self._asking
        answer = loop.run_in_executor(pool, self._answer, question, deadline, tell)
        answer.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield Reply(event, is_answer=False)
            yield Reply(await answer, is_answer=True)
        finally:
            deadline.cancel()

    async def _keep_report(self) -> None:
        """Keeps the report new, and ends the jobs of ingresses that have gone."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._report = await loop.run_in_executor(self._reporter, self.report)
            except GlassloopError:  # the engine is closed
                _LOG.exception("replica %s could not report", self.name)
            self._end_abandoned()
            await asyncio.sleep(_REPORT_EVERY)

    def report(self) -> Report:
        """Returns the state of this replica. Takes a moment: not for the event loop's thread."""
        (own,) = self.llm.statistics()
        steps, when = self._summed
        if own.steps != steps and time.monotonic() - when >= _SUMMARY_EVERY:
            self._summed = own.steps, time.monotonic()
            self.llm.engine.call(self._sum_up)
        told = replace(own, replica=self.name, node=self._node or own.node)
        return Report(self._identity, told, self._room, dict(self.llm.adapters), self._prefixes)

    def check_health(self) -> None:
        """Raises if the engine has work but has not finished a step for a long time."""
        (own,) = self.llm.statistics()
        if own.steps != self._progress[0] or not own.running + own.waiting:
            self._progress = own.steps, time.monotonic()
        elif time.monotonic() - self._progress[1] > _STUCK:
            raise GlassloopError(f"the engine has not finished a step for {_STUCK:g} s")

    def close(self) -> None:
        self.llm.close()

    def _sum_up(self) -> None:
        loop = self.llm.engine.loop
        adapters = {each.number: each.sha256 for each in loop.adapters.values()}
        self._prefixes = summary(loop.tree, self._digests, adapters)

    def _session(self, name: str) -> _Session:
        if name not in self._sessions:
            self._sessions[name] = _Session(asyncio.get_running_loop())
        return self._sessions[name]

    def _end_abandoned(self) -> None:
        """Ends the jobs of ingresses that have not been heard of for a while."""
        now = time.monotonic()
        for name, session in list(self._sessions.items()):
            if not session.streams and now - session.seen > _LEASE:
                session.end()  # with which `start` cancels its jobs
                del self._sessions[name]

    # ── requests ───────────────────────────────────────────────────────────────────────────────────────────

    def _request(self, job: Job) -> Request:
        """Returns the request of a job, whose runs have the tokens that were delivered before."""
        llm = self.llm
        prompt = list(job.prompt_ids)
        runs: list[Run] = []
        for each in job.runs:
            run = llm.new_run(
                prompt, each.sampling, each.seed, salt=each.salt, prompt=None, sample=each.sample
            )
            run.tokens = [self._known(token) for token in each.tokens]
            if each.revision is not None:
                told = each.revision
                run.tokens = [made_token(token, llm.piece, each.sample) for token in told.tokens]
                run.fork_at, run.revised, run.forks = told.fork_at, told.revised, dict(told.forks)
            if job.scored:
                run.prompt_tokens = [self._known(prompt[-1])]
            run.samples = runs
            runs.append(run)
        built = llm.build(job.sampling)
        drafts = job.drafts and llm.drafts
        request = Request(
            prompt,
            job.sampling,
            runs,
            priority=job.priority,
            forced=list(job.forced),
            pause=job.pause,
            drafts=drafts,
            built=built,
        )
        request.arrived = perf_counter() - job.elapsed
        return request

    def _known(self, id: int) -> Token:
        """Returns a token whose record is elsewhere."""
        chosen = Chosen(pack("q", id) + bytes(RECORD.itemsize - 8))
        return Token(chosen, "", self.llm.tokenizer.token_bytes(id), self.llm.piece, "forced")

    def _answer(self, question: Question, deadline: Deadline, tell: Callable[[Any], None]) -> bytes:
        function, args, options = loads(question.call, self.llm)
        if question.has_events:
            options["on_event"] = tell
        return dumps(function(self.llm, *args, deadline=deadline, **options))


class _Session:
    """What one ingress has not been told yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.requests: dict[str, Request] = {}
        self.turn = 0  # the number of the stream that was opened last: earlier ones end
        self.streams = 0  # that are open
        self.seen = time.monotonic()  # when a stream was last open
        self._loop = loop
        self._ended: dict[str, asyncio.Event] = {}
        self._open_runs: dict[str, int] = {}  # runs of each job whose end has not been told
        self._runs: dict[str, list[Run]] = {}
        self._scored: set[str] = set()  # jobs whose records of the prompt are known to the ingress
        # The job, the place of the run, its tokens, and whether it has ended or, by TakenBack, is continued.
        self._events: deque[tuple[str, int, list[Token], bool | TakenBack]] = deque()
        self._last: dict[tuple[str, int], list[Token]] = {}  # tokens that wait for the end of their run
        self._news = asyncio.Event()
        self._urgent = asyncio.Event()  # a first token or an end, which is told at once
        self._has_urgent = self._woken = False
        self._taken = 0.0

    def add(self, job: Job, request: Request) -> asyncio.Event:
        """Adds a job; returns the event of its end."""
        self.requests[job.key] = request
        self._runs[job.key] = list(request.runs)
        self._open_runs[job.key] = len(request.runs)
        ended = self._ended[job.key] = asyncio.Event()
        if job.scored or not job.sampling.prompt_logprobs:
            self._scored.add(job.key)
        places = {id(run): place for place, run in enumerate(request.runs)}

        def listen(run: Run, token: Token | None) -> None:
            place = places[id(run)]
            if isinstance(token, TakenBack):
                places[id(token.run)] = place
                self._events.append((job.key, place, [], token))
                self._wake_up()
            else:
                self._tell(job.key, run, place, token)

        request.listener = listen
        return ended

    def end(self) -> None:
        """Ends the wait for all jobs: the ingress has gone."""
        for ended in self._ended.values():
            ended.set()

    def forget(self, key: str) -> None:
        """Drops a job, whose end has been told or is not wanted."""
        for known in (self.requests, self._runs, self._ended, self._open_runs):
            known.pop(key, None)
        self._scored.discard(key)

    def _tell(self, key: str, run: Run, place: int, token: Token | None) -> None:
        """Notes a token, or with None the end of a run. Called on the engine's thread. Tokens that are told
        when the run has ended, the last one or those of a beam, are noted with the end."""
        last = self._last.setdefault((key, place), []) if run.finish_reason is not None else []
        if token is not None:
            last.append(token)
            if run.finish_reason is not None:
                return
        self._events.append((key, place, last, token is None))
        self._last.pop((key, place), None)
        if token is None or len(run.tokens) <= 1:
            self._has_urgent = True
        self._wake_up()

    def _wake_up(self) -> None:
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._woken = False
        self._news.set()
        if self._has_urgent:
            self._urgent.set()

    async def news(self, most: float) -> None:
        """Waits until there is something to tell, or for this many seconds. With many runs, tokens other than
        the first and the last of a run are gathered for longer."""
        rest = self._taken + _GATHER - time.monotonic()
        if rest > 0:
            await asyncio.sleep(rest)
        gather = min(_GATHER_MOST, _GATHER + _GATHER_EACH * (sum(self._open_runs.values()) - 1))
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._taken + gather - time.monotonic())):
                await self._urgent.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(most):
                await self._news.wait()

    def take(self) -> list[News]:
        """Returns what has come since the last call, the tokens of a run together."""
        self._news.clear()
        self._urgent.clear()
        self._has_urgent = False
        self._taken = time.monotonic()
        told: list[News] = []
        gathered: dict[tuple[str, int], list[Token]] = {}
        ended = set()
        while self._events:
            key, place, tokens, end = self._events.popleft()
            if key not in self._runs:
                continue
            known = gathered.setdefault((key, place), [])
            known.extend(tokens)
            if isinstance(end, TakenBack):
                told.append(self._of_run(key, place, gathered.pop((key, place)), False, end))
                self._runs[key][place] = end.run
            elif end:
                ended.add((key, place))
        return told + [self._of_run(*run, tokens, run in ended) for run, tokens in gathered.items()]

    def _of_run(
        self, key: str, place: int, tokens: list[Token], ended: bool, taken: TakenBack | None = None
    ) -> News:
        run = self._runs[key][place]
        prompt = []
        if key not in self._scored:
            self._scored.add(key)
            prompt = [TokenData.of(token) for token in run.prompt_tokens]
        end = None
        if ended:
            end = _end(run, dropped=run not in self.requests[key].runs)
            self._open_runs[key] -= 1
            if not self._open_runs[key]:
                self._ended[key].set()
        sent = [TokenData.of(token) for token in tokens]
        back = None if taken is None else (taken.to, taken.run.salt)
        return News(key, place, sent, prompt, _facts(run), end, back)


def _facts(run: Run) -> Facts:
    timings, drafts = run.timings, run.drafts
    return Facts(
        run.cached_tokens,
        timings.queue,
        timings.prefill,
        timings.decode,
        timings.preempted,
        drafts.proposed,
        drafts.accepted,
        drafts.seconds,
    )


def _end(run: Run, dropped: bool) -> End:
    last = None if run.end is None else TokenData.of(run.end)
    error = run.error
    if error is not None and not isinstance(error, GlassloopError):
        error = RuntimeError(str(error))  # any class may not be known elsewhere, or not be picklable
    return End(run.finish_reason or "error", run.stop_reason, run.tail, last, error, run.beams, dropped)


def _most_tokens(llm: LLM) -> int:
    """Returns how many tokens a branch may have at most."""
    low, high = 0, llm.config.context + 1
    while low < high:
        middle = (low + high + 1) // 2
        if llm.has_room(middle):
            low = middle
        else:
            high = middle - 1
    return low
