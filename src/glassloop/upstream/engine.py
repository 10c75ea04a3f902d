"""`UpstreamEngine`: an engine whose requests are computed by another one, behind an OpenAI-compatible API.

Each run is one streamed request. All of them run on one event loop, in a thread of its own, which also tells
the listeners.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from glassloop.decode.compiled import Compiled
from glassloop.decode.sampling import Sampling
from glassloop.engine.deadline import Deadline
from glassloop.engine.follow import afollow, follow, raise_error
from glassloop.engine.protocol import UNKNOWN_CONTEXT, Engine, LensReader, Statistics, Unavailable
from glassloop.engine.request import Listener, Request, ignore, runs_of
from glassloop.engine.request_maker import Messages, Prompt
from glassloop.engine.thread import Busy
from glassloop.errors import GlassloopError, SamplingError, TextError, TraceError
from glassloop.ops.quant import Float32
from glassloop.shown import printable
from glassloop.text.pieces import Pieces
from glassloop.trace.messages import Message, recorded
from glassloop.trace.run import Run, Upstream
from glassloop.trace.token import Token
from glassloop.trace.told import explain_told
from glassloop.upstream.answer import Answer
from glassloop.upstream.client import Client, Refused, UpstreamError, checked_url
from glassloop.upstream.fork import continued_text, fork_of
from glassloop.upstream.prompts import read_chat_prompt, read_prompt
from glassloop.upstream.reading import read_part
from glassloop.upstream.servers import Kind, check_options, kind_of, options_for
from glassloop.upstream.vocabulary import (
    UnknownConfig,
    UnknownTokenizer,
    name_of,
    name_of_messages,
)

if TYPE_CHECKING:
    from glassloop.decode.explain import Explanation
    from glassloop.trace.verdict import Verdict

_LOG = logging.getLogger(__name__)
KEY_VARIABLE = "GLASSLOOP_UPSTREAM_KEY"
_START_SECONDS = 60.0  # for the list of models
_PROMPT_SECONDS = 300.0  # for the log-probabilities of a prompt
_MOST_RUNNING = 256  # requests at once
_MOST_WAITING = 1024
_OP_SET = "upstream"
T = TypeVar("T")


class _Work:
    """A request that is under way."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.task: asyncio.Task[None] | None = None
        self.cancelled = False
        self.ended = threading.Event()
        self._open = list(request.runs)  # those whose end was not told

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


class UpstreamEngine(Engine):
    """A model behind an OpenAI-compatible API: vLLM, llama.cpp, Ollama, a hosted one.

    `model` is its name there; without it, the only one that the upstream has. `key` is the API key, by
    default the environment variable GLASSLOOP_UPSTREAM_KEY; it is never recorded or logged.
    """

    ops = _OP_SET

    @property
    def engine(self) -> UpstreamEngine:
        """What computes requests, as `LLM.engine` does."""
        return self

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        key: str | None = None,
        most_running: int = _MOST_RUNNING,
        most_waiting: int = _MOST_WAITING,
    ) -> None:
        self.most_waiting, self._most_running = most_waiting, most_running
        self.drafts = False
        self.default_sampling = Sampling()
        self._key = key or os.environ.get(KEY_VARIABLE) or None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="glassloop upstream", daemon=True)
        self._thread.start()
        self._works: dict[int, _Work] = {}  # by the id of the request
        self._running = self._finished = 0
        self._told_prompt = self._told_cached = 0  # tokens
        self._gives_logprobs = True  # until it refuses to
        self._problem: str | None = None
        self._closed = False
        try:
            url = checked_url(url)
            self._call(self._connect(url, model), _START_SECONDS)
        except BaseException:
            self.close()
            raise
        self._pieces = Pieces(self.tokenizer)

    async def _connect(self, url: str, model: str | None) -> None:
        """Finds the API below a URL, its kind, and the model."""
        bases = [url, f"{url}/v1"] if url.count("/") > 2 else [f"{url}/v1", url]
        for place, base in enumerate(bases):
            self._client = Client(base, self._key)
            try:
                listed = await self._client.get("/models")
                break
            except Refused as error:
                await self._client.close()
                if error.status not in (404, 405) or place + 1 == len(bases):
                    raise
        self._requests = asyncio.Semaphore(self._most_running)
        entries = listed.get("data") if isinstance(listed, dict) else None
        models = [
            each for each in entries or [] if isinstance(each, dict) and isinstance(each.get("id"), str)
        ]
        names = [each["id"] for each in models]
        if model is None and len(names) == 1:
            model = names[0]
        if model is None:
            some = printable(", ".join(names[:10]) + (", …" if len(names) > 10 else ""), 500)
            raise GlassloopError.about(
                "model", f"is not given; the upstream has {some or 'no list of models'}"
            )
        entry = next((each for each in models if each["id"] == model), models[0] if models else {})
        self.kind: Kind = kind_of(entry.get("owned_by"))
        context = entry.get("max_model_len", entry.get("context_length"))
        known = type(context) is int and 0 < context < UNKNOWN_CONTEXT
        self.model = self.name = model
        self.tokenizer = UnknownTokenizer(model)
        self.config = UnknownConfig(context if known else None)

    # ── the model ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def url(self) -> str:
        return self._client.url

    @property
    def upstream(self) -> str:
        return Upstream(self.url, self.kind.name, "chat").described

    @property
    def op_set(self) -> str:
        return f"{_OP_SET} {self.kind.name}".strip()

    @property
    def model_hash(self) -> str:
        return ""  # not known

    @property
    def kv_memory(self) -> int:
        return 0  # not known

    def has_room(self, tokens: int) -> bool:
        return True

    def decode(self, token_ids: Sequence[int]) -> str:
        return ""

    # ── requests ───────────────────────────────────────────────────────────────────────────────────────────

    def compile(self, sampling: Sampling) -> Compiled:
        check_options(self.kind, sampling)
        return Compiled(sampling, (), None, None, None)

    def prepare(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        priority: int = 0,
        listener: Listener = ignore,
        compiled: Compiled | None = None,
        messages: Messages | None = None,
    ) -> Request:
        sampling = self.default_sampling if sampling is None else sampling
        built = self.compile(sampling)
        talk = None if messages is None else recorded(messages)
        text = prompt if talk is None else None
        if text is not None and not isinstance(text, str):
            raise TextError.about("prompt", "is token ids; they are not known here: a text is expected")
        options_for(self.kind, sampling, chat=talk is not None)  # raises what is wrong
        told: list[Token] = []
        if text is not None and not text:
            raise TextError.about("prompt", "is empty; at least one character is expected")
        if sampling.prompt_logprobs:
            ids, told = self._prompt_tokens(text, talk, sampling)
        elif talk is not None:
            ids = [name_of_messages(talk)]
        else:
            ids = [name_of((text or "").encode("utf-8", "replace"))]

        def make(seed: int, number: int) -> Run:
            made = self._new(ids, sampling, (seed + number) % (1 << 64), text, talk, number)
            made.prompt_tokens = list(told)
            return made

        runs = runs_of(sampling, make)
        return Request(ids, sampling, runs, listener, priority, drafts=False, keep=self.keep, built=built)

    def _prompt_tokens(
        self, text: str | None, talk: list[Message] | None, sampling: Sampling
    ) -> tuple[list[int], list[Token]]:
        """Returns the tokens of a prompt as the upstream tells them; raises if it does not."""
        count, server = sampling.prompt_logprobs, self.kind.name or "the upstream"
        asked: Coroutine[Any, Any, tuple[list[int], list[Token]]]
        if talk is not None and self.kind.scores_chats:
            asked = read_chat_prompt(self._client, self.model, talk, count)
        elif talk is not None:
            problem = f"is given for a chat; {server} is not known to have that, only for a text"
            raise SamplingError.about("prompt_logprobs", problem)
        elif not self.kind.echoes:
            problem = f"is given; {server} gives those of the next token in their place"
            raise SamplingError.about("prompt_logprobs", problem)
        else:
            asked = read_prompt(self._client, self.model, text or "", count)
        return self._call(asked, sampling.timeout or _PROMPT_SECONDS)

    def _new(
        self,
        ids: list[int],
        sampling: Sampling,
        seed: int,
        text: str | None,
        talk: list[Message] | None,
        sample: int,
    ) -> Run:
        made = self.new_run(ids, sampling, seed, salt=0, prompt=text, sample=sample, messages=talk)
        made.context = 0 if self.config.context == UNKNOWN_CONTEXT else self.config.context
        endpoint = "completions" if talk is None else "chat"
        made.upstream = Upstream(self.url, self.kind.name, endpoint, self._gives_logprobs)
        return made

    def prepare_fork(
        self, run: Run, at: int, *, listener: Listener = ignore, priority: int = 0, **changes: Any
    ) -> Request:
        self._check_own(run)
        made = fork_of(self, run, at, **changes)
        for each in made.runs:
            continued_text(self.kind, each)
        made.listener, made.priority = listener, priority
        return made

    def prepare_rest(self, run: Run, *, timeout: float | None = None) -> Request:
        """Returns a request that continues a run from its text. Unlike with an engine of our own, what comes
        may be another text than without the interruption."""
        self._check_own(run)
        continued_text(self.kind, run)
        limits = [seconds for seconds in (run.sampling.timeout, timeout) if seconds is not None]
        own = replace(run.sampling, n=1, timeout=min(limits, default=None))
        return Request(run.prompt_ids, own, [run], drafts=False, keep=self.keep, built=self.compile(own))

    def _check_own(self, run: Run) -> None:
        """Raises unless this upstream made the run."""
        if run.upstream is None or run.upstream.url != self.url or run.model != self.name:
            made = "this program itself" if run.upstream is None else run.upstream.described
            raise TraceError(
                f"run {run.id} was computed by {made}, with the model {printable(run.model, 200)}; here"
                f" {self.name} at {self.url} answers, which can only show it"
            )

    # ── computing ──────────────────────────────────────────────────────────────────────────────────────────

    def submit(self, request: Request, may_refuse: bool = True) -> None:
        waiting = len(self._works) - self._running
        if may_refuse and waiting >= self.most_waiting:
            raise Busy(f"{waiting} requests are waiting already; at most {self.most_waiting} are allowed")
        if self._closed:
            raise Unavailable("the engine is closed")
        work = self._works[id(request)] = _Work(request)

        def start() -> None:
            work.task = self._loop.create_task(self._compute(work))
            work.task.add_done_callback(lambda _: self._finish(work))

        self._loop.call_soon_threadsafe(start)

    def cancel(self, request: Request, wait: bool = False) -> None:
        work = self._works.get(id(request))
        if work is None:
            return
        work.cancelled = True
        self._loop.call_soon_threadsafe(work.stop)
        if wait and threading.current_thread() is not self._thread:
            work.ended.wait()

    def _finish(self, work: _Work) -> None:
        """Ends what is left of a request: its task may have been cancelled before its first step."""
        work.end_all("cancelled", "cancelled")
        self._finished += 1
        del self._works[id(work.request)]
        work.ended.set()

    async def _compute(self, work: _Work) -> None:
        """Computes all runs of a request."""
        request = work.request
        timeout = request.sampling.timeout
        left = None if timeout is None else max(0.0, timeout - request.seconds)
        try:
            async with asyncio.timeout(left), self._requests:
                self._running += 1
                try:
                    request.begin(perf_counter(), 0)
                    await asyncio.gather(*(self._answer(run, work) for run in request.runs))
                finally:
                    self._running -= 1
        except TimeoutError:
            work.end_all("timeout", f"after {timeout:g} s")

    async def _answer(self, run: Run, work: _Work) -> None:
        """Computes one run. What came before an error is kept."""
        request = work.request
        answer = Answer(request, run)
        try:
            async with aclosing(self._tokens(request, run, answer)) as tokens:
                async for token in tokens:
                    run.tokens.append(token)
                    request.tell(run, token)
                    if work.cancelled or request.abandoned:
                        answer.finish("cancelled", "cancelled")
                        break
            self._problem = None
        except Exception as error:  # the other runs of the request go on
            if not isinstance(error, GlassloopError):
                _LOG.exception("run %s failed", run.id)
            elif isinstance(error, Unavailable):
                self._problem = str(error)
            if run.tokens and not isinstance(error, Busy):
                error.args = (f"{error} ({len(run.tokens)} tokens had come, which are kept)",)
            run.error, run.finish_reason, run.stop_reason = error, "error", str(error)
        finally:
            answer.close()
        if run.upstream is not None:
            self._told_prompt += run.upstream.prompt_tokens or 0
            self._told_cached += run.upstream.cached_tokens or 0
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
        async with aclosing(self._stream(path, body, run)) as chunks:
            async for chunk in chunks:
                for token in answer.read(read_part(chunk)):
                    yield token
                if len(run.tokens) > request.sampling.max_tokens:
                    raise UpstreamError(f"the upstream sent more than the {room} tokens that were asked for")
        if run.finish_reason is None:
            raise Unavailable("the upstream's stream ended in the middle of the answer")

    async def _stream(self, path: str, body: dict[str, Any], run: Run) -> AsyncGenerator[Any, None]:
        """Yields the chunks of an answer. If the upstream refuses to give log-probabilities, it is asked
        again, without them."""
        told = False
        try:
            async with aclosing(self._client.stream(path, body)) as chunks:
                async for chunk in chunks:
                    told = True
                    yield chunk
            if told or "logprobs" not in body:
                return  # an empty stream is how some servers refuse
        except (Refused, UpstreamError, Unavailable) as error:
            if told or "logprobs" not in str(error) or "logprobs" not in body:
                raise
        self._gives_logprobs = False
        assert run.upstream is not None
        run.upstream = replace(run.upstream, logprobs=False)
        without = {name: value for name, value in body.items() if name not in ("logprobs", "top_logprobs")}
        async with aclosing(self._client.stream(path, without)) as chunks:
            async for chunk in chunks:
                yield chunk

    def _body(self, request: Request, run: Run, room: int) -> tuple[str, dict[str, Any]]:
        """Returns the path and the body of the request for the rest of a run."""
        sampling, chat = run.sampling, run.messages is not None
        body: dict[str, Any] = {"model": self.model, "stream": True, "seed": run.seed}
        body |= options_for(self.kind, sampling, chat=chat)
        if self.kind.name != "llama-cpp-python":
            body["stream_options"] = {"include_usage": True}
        # An answer without a limit ends where the upstream's context does, which counts tokens as we cannot.
        if sampling.max_tokens < self.config.context - len(run.prompt_ids):
            body["max_tokens"] = room
        if self._gives_logprobs:
            if chat:
                body |= {"logprobs": True, "top_logprobs": min(sampling.logprobs, 20)}
            else:
                body["logprobs"] = sampling.logprobs
        return ("/chat/completions" if chat else "/completions"), body | continued_text(self.kind, run)

    # ── as an LLM of Python ────────────────────────────────────────────────────────────────────────────────

    def follow(self, request: Request, *, settled: bool = False) -> Iterator[Token]:
        """Yields the tokens of a prepared request. Leaving the iteration cancels it."""
        return follow(self, request)

    def afollow(self, request: Request) -> AsyncIterator[Token]:
        return afollow(self, request)

    def complete(self, request: Request) -> Run:
        """Computes a request and returns its first run."""
        for _ in self.follow(request):
            pass
        raise_error(request.runs[0])
        return request.runs[0]

    def generate(self, prompt: str, sampling: Sampling | None = None) -> Run:
        """Continues a text."""
        return self.complete(self.prepare(prompt, sampling))

    def chat(self, messages: Messages, sampling: Sampling | None = None) -> Run:
        """Generates the next turn of a conversation."""
        return self.complete(self.prepare_chat(messages, sampling))

    def fork(self, run: Run, at: int, **options: Any) -> Run:
        return self.complete(self.prepare_fork(run, at, **options))

    # ── questions ──────────────────────────────────────────────────────────────────────────────────────────

    def explain(
        self, run: Run, at: int, *, deadline: Deadline | None = None, **overrides: Any
    ) -> Explanation:
        if run.upstream is None:
            raise TraceError(
                f"run {run.id} was computed by the model {run.model}; here another engine answers"
            )
        return explain_told(run, at, **overrides)

    def replay(
        self, run: Run, *, first: int = 0, strict: bool = True, deadline: Deadline | None = None
    ) -> Verdict:
        run.check_computable()
        raise TraceError(f"run {run.id} cannot be computed again by another engine")

    @property
    def lens(self) -> LensReader:
        raise GlassloopError.about("lens", f"is not known: {self.upstream} computes the model")

    def embed(self, token_ids: Sequence[int], *, deadline: Deadline | None = None) -> Float32:
        raise GlassloopError("embeddings are not passed on to another engine")

    # ── operation ──────────────────────────────────────────────────────────────────────────────────────────

    def statistics(self) -> list[Statistics]:
        """Returns the load; the cache and the steps of the upstream are not known, so they are 0."""
        load = {"waiting": len(self._works) - self._running, "running": self._running}
        told = {"prompt_tokens": self._told_prompt, "prompt_tokens_cached": self._told_cached}
        return [
            Statistics(
                replica="",
                pid=os.getpid(),
                node=self.url,
                model=self.name,
                kv_memory=0,
                kv_bytes=0,
                page_bytes=0,
                pages=0,
                pages_held=0,
                pages_capacity=0,
                pages_evicted=0,
                cached_tokens=0,
                steps=0,
                rows=0,
                finished=self._finished,
                forward_seconds=0.0,
                step_seconds=0.0,
                **load,
                **told,
            )
        ]

    @property
    def problem(self) -> str | None:
        return self._problem

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        works = list(self._works.values())
        for work in works:
            self._loop.call_soon_threadsafe(work.stop)
        for work in works:
            work.ended.wait(5)
        if hasattr(self, "_client"):
            self._call(self._client.close(), 5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        if not self._thread.is_alive():
            self._loop.close()

    def __enter__(self) -> UpstreamEngine:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def _call(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Returns what a coroutine returns, from another thread than the loop's."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds)
        except TimeoutError:
            future.cancel()
            raise Unavailable(f"the upstream did not answer within {seconds:g} s") from None
