"""`UpstreamStreams`: computes requests by streamed requests to another engine, one for each run.

All of them run on one event loop, in a thread of its own, which also tells the listeners.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from dataclasses import replace
from time import perf_counter
from typing import Any, TypeVar

from glassloop.decode.stop import PAUSED, Ending
from glassloop.engine.protocol import UNKNOWN_CONTEXT, Statistics, Unavailable
from glassloop.engine.request import Request
from glassloop.engine.thread import Busy
from glassloop.errors import GlassloopError
from glassloop.record.run import Run
from glassloop.record.token import Token
from glassloop.upstream.answer import Answer, reporting_engine
from glassloop.upstream.api import Api, connect
from glassloop.upstream.client import Refused, UpstreamError
from glassloop.upstream.fork import continued_text
from glassloop.upstream.reading import read_part
from glassloop.upstream.servers import options_for

_LOG = logging.getLogger(__name__)
_START_SECONDS = 60.0  # for the list of models
T = TypeVar("T")


class UpstreamWork:
    """A request that is under way."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.task: asyncio.Task[None] | None = None
        self.cancelled = False
        self.stopped: list[Run] = []  # runs that are to end by themselves
        self.ended = threading.Event()
        self._open = list(request.runs)  # those whose end was not told

    def ending_of(self, run: Run) -> Ending | None:
        """Returns how a run has to end after the token that came last, if it has to."""
        pause = self.request.pause
        if self.cancelled or run in self.stopped:
            return Ending("cancelled", "cancelled")
        if pause is not None and len(run.tokens) >= pause.tokens:
            return PAUSED
        return self.request.abandoned

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def end(self, run: Run) -> None:
        """Tells the listener that a run has ended, once."""
        if any(each is run for each in self._open):
            self._open = [each for each in self._open if each is not run]
            self.request.tell(run, None)

    def end_all(self, reason: str, why: str) -> None:
        """Ends all runs that have not ended."""
        for run in list(self._open):
            if run.finish_reason is None:
                run.finish_reason, run.stop_reason = reason, why
            self.end(run)


class UpstreamStreams:
    """The requests of one upstream, and the thread that computes them."""

    def __init__(
        self, url: str, model: str | None, key: str | None, most_running: int, most_waiting: int
    ) -> None:
        self.most_running, self.most_waiting = most_running, most_waiting
        self.running = self.finished = 0  # requests
        self.prompt_tokens = self.prompt_tokens_cached = 0  # as the upstream has told them
        self.gives_logprobs = True  # until it refuses to
        self.problem: str | None = None  # why the last request has failed
        self._works: dict[int, UpstreamWork] = {}  # by the id of the request
        self._requests = asyncio.Semaphore(most_running)
        self._closed = False
        self._events = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._events.run_forever, name="glassloop upstream", daemon=True
        )
        self._thread.start()
        try:
            self.api: Api = self.call(connect(url, model, key), _START_SECONDS)
        except BaseException:
            self._stop()
            raise
        self._context = self.api.context or UNKNOWN_CONTEXT

    @property
    def waiting(self) -> int:
        return len(self._works) - self.running

    def submit(self, request: Request, may_refuse: bool = True) -> None:
        """Queues a request. Raises `Busy` if too many wait already."""
        waiting = self.waiting
        if may_refuse and waiting >= self.most_waiting:
            raise Busy(f"{waiting} requests are waiting already; at most {self.most_waiting} are allowed")
        if self._closed:
            raise Unavailable("the engine is closed")
        work = self._works[id(request)] = UpstreamWork(request)

        def start() -> None:
            work.task = self._events.create_task(self._compute(work))
            work.task.add_done_callback(lambda _: self._finish(work))

        self._events.call_soon_threadsafe(start)

    def cancel(self, request: Request, wait: bool = False, run: Run | None = None) -> None:
        """Ends a request soon, as cancelled; with `wait`, when its end has been told. One run of several ends
        when its next token comes."""
        work = self._works.get(id(request))
        if work is None:
            return
        if run is not None and len(request.runs) > 1:
            work.stopped.append(run)
            return
        work.cancelled = True
        self._events.call_soon_threadsafe(work.stop)
        if wait and threading.current_thread() is not self._thread:
            work.ended.wait()

    def check_may_wait(self) -> None:
        if threading.current_thread() is self._thread:
            raise GlassloopError(
                "a call that waits for the engine was made on the engine's thread, by a listener; it is"
                " expected on another thread"
            )

    def statistics(self, model: str) -> list[Statistics]:
        """Returns the load; the cache and the steps of the upstream are not known."""
        now = Statistics(
            replica="",
            pid=os.getpid(),
            node=self.api.client.url,
            model=model,
            finished=self.finished,
            waiting=self.waiting,
            running=self.running,
            prompt_tokens=self.prompt_tokens,
            prompt_tokens_cached=self.prompt_tokens_cached,
        )
        return [now]

    def _finish(self, work: UpstreamWork) -> None:
        """Ends what is left of a request: its task may have been cancelled before its first step."""
        work.end_all("cancelled", "cancelled")
        self.finished += 1
        del self._works[id(work.request)]
        work.ended.set()

    async def _compute(self, work: UpstreamWork) -> None:
        """Computes all runs of a request."""
        request = work.request
        timeout = request.sampling.timeout
        left = None if timeout is None else max(0.0, timeout - request.seconds)
        try:
            async with asyncio.timeout(left), self._requests:
                self.running += 1
                try:
                    request.begin(perf_counter(), 0)
                    await asyncio.gather(*(self._answer(run, work) for run in request.runs))
                finally:
                    self.running -= 1
        except TimeoutError:
            work.end_all("timeout", f"after {timeout:g} s")

    async def _answer(self, run: Run, work: UpstreamWork) -> None:
        """Computes one run. What came before an error is kept."""
        request = work.request
        answer = Answer(request, run)
        try:
            async with aclosing(self._tokens(request, run, answer)) as tokens:
                async for token in tokens:
                    run.tokens.append(token)
                    request.tell(run, token)
                    ending = work.ending_of(run)
                    if ending is not None:
                        answer.finish(*ending)
                        break
            self.problem = None
        except Exception as error:  # the other runs of the request go on
            if not isinstance(error, GlassloopError):
                _LOG.exception("run %s failed", run.id)
            elif isinstance(error, Unavailable):
                self.problem = str(error)
            if run.tokens and not isinstance(error, Busy):
                error.args = (f"{error} ({len(run.tokens)} tokens had come, which are kept)",)
            run.error, run.finish_reason, run.stop_reason = error, "error", str(error)
        finally:
            answer.close()
        engine = reporting_engine(run)
        self.prompt_tokens += engine.prompt_tokens or 0
        self.prompt_tokens_cached += engine.cached_tokens or 0
        work.end(run)

    async def _tokens(self, request: Request, run: Run, answer: Answer) -> AsyncGenerator[Token, None]:
        """Yields the tokens of a run: those that are forced, then those of the stream."""
        for token in answer.forced():
            yield token
        room = request.sampling.max_tokens - len(run.tokens)
        if room <= 0:
            answer.finish("length", "max_tokens")
            return
        path, body = self._body(request, run, room)
        # Each generator is closed when it is left, which closes the connection: the upstream stops then.
        async with aclosing(self._stream(path, body, run, room)) as chunks:
            async for chunk in chunks:
                for token in answer.read(read_part(chunk)):
                    yield token
                    if len(run.tokens) > request.sampling.max_tokens:
                        problem = f"the upstream sent more than the {room} tokens that were asked for"
                        raise UpstreamError(problem)
        if run.finish_reason is None:
            raise Unavailable("the upstream's stream ended in the middle of the answer")

    async def _stream(
        self, path: str, body: dict[str, Any], run: Run, room: int
    ) -> AsyncGenerator[Any, None]:
        """Yields the chunks of an answer. If the upstream refuses to give log-probabilities, it is asked
        again, without them."""
        has_told = False
        try:
            async with aclosing(self.api.client.stream(path, body, room)) as chunks:
                async for chunk in chunks:
                    has_told = True
                    yield chunk
            if has_told or "logprobs" not in body:
                return  # an empty stream is how some servers refuse
        except (Refused, UpstreamError, Unavailable) as error:
            if has_told or "logprobs" not in str(error) or "logprobs" not in body:
                raise
        self.gives_logprobs = False
        run.origin = replace(reporting_engine(run), logprobs=False)
        without = {name: value for name, value in body.items() if name not in ("logprobs", "top_logprobs")}
        async with aclosing(self.api.client.stream(path, without, room)) as chunks:
            async for chunk in chunks:
                yield chunk

    def _body(self, request: Request, run: Run, room: int) -> tuple[str, dict[str, Any]]:
        """Returns the path and the body of the request for the rest of a run."""
        sampling, chat = run.sampling, run.messages is not None
        body: dict[str, Any] = {"model": self.api.model, "stream": True, "seed": run.seed}
        body |= options_for(self.api.kind, sampling, chat=chat)
        if self.api.kind.name != "llama-cpp-python":
            body["stream_options"] = {"include_usage": True}
        # An answer without a limit ends where the upstream's context does, which counts tokens as we cannot.
        if sampling.max_tokens < self._context - len(run.prompt_ids):
            body["max_tokens"] = room
        if self.gives_logprobs:
            if chat:
                body |= {"logprobs": True, "top_logprobs": min(sampling.logprobs, 20)}
            else:
                body["logprobs"] = sampling.logprobs
        return ("/chat/completions" if chat else "/completions"), body | continued_text(self.api.kind, run)

    def call(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Returns what a coroutine returns, from another thread than the loop's."""
        future = asyncio.run_coroutine_threadsafe(work, self._events)
        try:
            return future.result(seconds)
        except TimeoutError:
            future.cancel()
            raise Unavailable(f"the upstream did not answer within {seconds:g} s") from None

    def close(self) -> None:
        """Ends what runs, as cancelled, the connections and the thread."""
        if self._closed:
            return
        self._closed = True
        works = list(self._works.values())
        for work in works:
            self._events.call_soon_threadsafe(work.stop)
        for work in works:
            work.ended.wait(5)
        with suppress(Unavailable):
            self.call(self.api.client.close(), 5)
        self._stop()

    def _stop(self) -> None:
        self._events.call_soon_threadsafe(self._events.stop)
        self._thread.join(5)
        if not self._thread.is_alive():
            self._events.close()
