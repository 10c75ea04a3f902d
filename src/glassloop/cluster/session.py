"""A session: the jobs of one ingress on a replica, and what it has not been told of them yet. Events come on
the engine's thread and are gathered into bulletins on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress

from glassloop.cluster.messages import End, Facts, Job, News, TokenData
from glassloop.diffuse.write import DiffusionRequest
from glassloop.engine.request import Request
from glassloop.errors import GlassloopError
from glassloop.record.passes import PassRecord
from glassloop.record.run import Run, TakenBack
from glassloop.record.token import Token

_GATHER = 0.01  # seconds between two bulletins at least: one carries the tokens of all requests
_GATHER_EACH = 0.01  # seconds more for each open run: a bulletin costs as much as a token
_GATHER_MOST = 0.1  # seconds between two bulletins, if there is something to tell


class Session:
    """The jobs of one ingress, and the events that it has not been told yet."""

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
        # The job, the place of the run, its tokens, and what came after them: nothing (False), its end
        # (True), a pass over masks, or that it is continued in another way.
        self._events: deque[tuple[str, int, list[Token], bool | PassRecord | TakenBack]] = deque()
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
                self._tell_event(job.key, place, token)
            else:
                self._tell(job.key, run, place, token)

        request.listener = listen
        if isinstance(request, DiffusionRequest):
            request.on_pass = lambda run, record: self._tell_event(job.key, places[id(run)], record)
        return ended

    def end(self) -> None:
        """Ends the wait for all jobs: the ingress has gone."""
        for ended in self._ended.values():
            ended.set()

    def forget(self, key: str) -> None:
        """Drops a job, whose end has been told or is not wanted."""
        for by_key in (self.requests, self._runs, self._ended, self._open_runs):
            by_key.pop(key, None)
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

    def _tell_event(self, key: str, place: int, event: PassRecord | TakenBack) -> None:
        self._events.append((key, place, [], event))
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
        ends: list[News] = []
        gathered: dict[tuple[str, int], list[Token]] = {}
        ended = set()
        while self._events:
            key, place, tokens, end = self._events.popleft()
            if key not in self._runs:
                continue
            gathered.setdefault((key, place), []).extend(tokens)
            if isinstance(end, PassRecord):
                ends.append(self._of_run(key, place, gathered.pop((key, place)))._replace(pass_record=end))
            elif isinstance(end, TakenBack):
                back = end.to, end.run.salt, end.run.id
                ends.append(self._of_run(key, place, gathered.pop((key, place)))._replace(taken_back=back))
                self._runs[key][place] = end.run
            elif end:
                ended.add((key, place))
        return ends + [self._of_run(*run, tokens, run in ended) for run, tokens in gathered.items()]

    def _of_run(self, key: str, place: int, tokens: list[Token], ended: bool = False) -> News:
        run = self._runs[key][place]
        prompt = []
        if key not in self._scored:
            self._scored.add(key)
            prompt = [TokenData.of(token) for token in run.prompt_tokens]
        end = None
        if ended:
            end = _end_of(run, dropped=run not in self.requests[key].runs)
            self._open_runs[key] -= 1
            if not self._open_runs[key]:
                self._ended[key].set()
        return News(key, place, [TokenData.of(token) for token in tokens], prompt, _facts_of(run), end)


def _facts_of(run: Run) -> Facts:
    """Returns what this attempt has counted for a run."""
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


def _end_of(run: Run, dropped: bool = False) -> End:
    """Returns the end of a run as it is sent."""
    last = None if run.end is None else TokenData.of(run.end)
    error = run.error
    if error is not None and not isinstance(error, GlassloopError):
        error = RuntimeError(str(error))  # any class may not be known elsewhere, or not be picklable
    return End(run.finish_reason or "error", run.stop_reason, run.tail, last, error, run.beams, dropped)
