"""A replica: an engine that computes jobs for ingresses, and tells each in one stream what comes of them.

Nothing here knows Ray: `cluster/deployment.py` makes a Ray Serve deployment of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from struct import pack
from time import perf_counter
from typing import Any

from glassloop.api.llm import LLM
from glassloop.cluster.messages import (
    Bulletin,
    Identity,
    Job,
    MaskFilling,
    Question,
    Reply,
    Report,
)
from glassloop.cluster.pickling import dumps, loads
from glassloop.cluster.prefixes import summary
from glassloop.cluster.run_stream import made_token
from glassloop.cluster.session import Session
from glassloop.decode.chosen import RECORD, Chosen
from glassloop.diffuse.write import by_diffusion
from glassloop.engine.deadline import Deadline
from glassloop.engine.kv_nodes import Node
from glassloop.engine.owner import owned_by
from glassloop.engine.request import Request
from glassloop.errors import GlassloopError
from glassloop.record.run import Run
from glassloop.record.token import Token

_LOG = logging.getLogger(__name__)
HEARTBEAT = 0.5  # seconds between two bulletins at most
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
        self._sessions: dict[str, Session] = {}
        self._identity = Identity(llm.model_hash, llm.op_set)  # hashing the files may take a while
        self._room = _most_tokens(llm)
        self._report: Report | None = None
        self._reporting: asyncio.Task[None] | None = None
        # Threads of their own, so that long questions delay neither new jobs nor reports.
        self._reporter = ThreadPoolExecutor(1, "glassloop report")
        self._preparing = ThreadPoolExecutor(2, "glassloop job")
        self._asking = ThreadPoolExecutor(4, "glassloop question")
        # For questions that take long, in which their threads wait for the engine.
        self._operating = ThreadPoolExecutor(16, "glassloop operation")
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

    def cancel(self, key: str, session: str, run: int | None = None) -> None:
        """Ends a job, or the run at this place of it, where it is. The ingress is told what it has."""
        request = self._session(session).requests.get(key)
        if request is not None:
            self.llm.cancel(request, run=None if run is None else request.runs[run])

    async def open(self, session: str) -> AsyncIterator[Bulletin]:
        """Yields what an ingress has to know, until it opens the next stream or some seconds have passed."""
        listener = self._session(session)
        listener.turn += 1
        listener.streams += 1
        turn, until = listener.turn, time.monotonic() + _OPEN_SECONDS
        sent: Report | None = None
        if self._reporting is None:
            self._reporting = asyncio.create_task(self._keep_report())
        try:
            while listener.turn == turn and time.monotonic() < until:
                report, sent = None if self._report is sent else self._report, self._report
                yield Bulletin(listener.take(), report)
                await listener.news(HEARTBEAT)
        finally:
            listener.streams -= 1
            listener.seen = time.monotonic()

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
        (now,) = self.llm.statistics()
        steps, when = self._summed
        if now.steps != steps and time.monotonic() - when >= _SUMMARY_EVERY:
            self._summed = now.steps, time.monotonic()
            self.llm.engine.call(self._sum_up)
        statistics = replace(now, replica=self.name, node=self._node or now.node)
        llm = self.llm
        return Report(
            self._identity, statistics, self._room, dict(llm.adapters), llm.can_diffuse, self._prefixes
        )

    def check_health(self) -> None:
        """Raises if the engine has work but has not finished a step for a long time."""
        (now,) = self.llm.statistics()
        if now.steps != self._progress[0] or not now.running + now.waiting:
            self._progress = now.steps, time.monotonic()
        elif time.monotonic() - self._progress[1] > _STUCK:
            raise GlassloopError(f"the engine has not finished a step for {_STUCK:g} s")

    def close(self) -> None:
        self.llm.close()

    def _sum_up(self) -> None:
        adapters = {self.llm.adapter_number(name): hash for name, hash in self.llm.adapters.items()}
        self._prefixes = summary(self.llm.engine.loop.tree, self._digests, adapters)

    def _session(self, name: str) -> Session:
        if name not in self._sessions:
            self._sessions[name] = Session(asyncio.get_running_loop())
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
            run = llm.requests.new_run(
                prompt, each.sampling, each.seed, salt=each.salt, prompt=None, sample=each.sample
            )
            run.id = each.id or run.id
            run.tokens = [self._known(token) for token in each.tokens]
            for token, record in zip(run.tokens, each.records, strict=False):
                token.chosen = Chosen(record)
            if each.revision is not None:
                revision = each.revision
                run.tokens = [made_token(token, llm.piece, each.sample) for token in revision.tokens]
                run.fork_at, run.revised, run.forks = revision.fork_at, revision.revised, dict(revision.forks)
            if job.scored:
                run.prompt_tokens = [self._known(id) for id in prompt[1:]]
            run.samples = runs
            runs.append(run)
        built = llm.requests.build(job.sampling)
        drafts = job.drafts and llm.drafts
        request = Request(
            prompt,
            job.sampling,
            runs,
            priority=job.priority,
            forced=list(job.forced),
            pause=job.pause,
            drafts=drafts,
            owner=job.owner,
            realm=job.realm,
            built=built,
        )
        request.arrived = perf_counter() - job.elapsed
        return request if job.masks is None else self._by_masks(request, job.masks)

    def _by_masks(self, request: Request, masks: MaskFilling) -> Request:
        written = by_diffusion(self.llm, request, masks.options)
        if written.mask.sha256 != masks.adapter:
            raise GlassloopError(
                "the replica has another adapter for masked rows than the request began with"
            )
        return written

    def _known(self, id: int) -> Token:
        """Returns a token whose record is elsewhere."""
        chosen = Chosen(pack("q", id) + bytes(RECORD.itemsize - 8))
        return Token(chosen, "", self.llm.tokenizer.token_bytes(id), self.llm.piece, "forced")

    def _answer(self, question: Question, deadline: Deadline, tell: Callable[[Any], None]) -> bytes:
        function, args, options = loads(question.call, self.llm)
        if question.has_events:
            options["on_event"] = tell
        with owned_by(question.owner, apart=bool(question.realm)):
            return dumps(function(self.llm, *args, deadline=deadline, **options))


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
