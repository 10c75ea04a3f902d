"""The one place where requests meet the engine: checked, started, followed, ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, TypeVar

from fastapi import Request as HTTPRequest

from glassloop.decode.compiled import Compiled
from glassloop.decode.sampling import Sampling
from glassloop.engine.deadline import Deadline
from glassloop.engine.llm import LLM, Prompt
from glassloop.engine.request import Request
from glassloop.errors import GlassloopError, TextError
from glassloop.server.bodies import Bodies
from glassloop.server.errors import APIError, as_api_error
from glassloop.server.keeping import Keeper
from glassloop.server.live import Event, Hub, Live, Tree
from glassloop.server.logs import Log
from glassloop.server.metrics import Metrics
from glassloop.server.options import Body, make_sampling
from glassloop.server.settings import Settings
from glassloop.server.shelf import Shelf
from glassloop.server.wire import unless_gone
from glassloop.server.workers import Pools
from glassloop.trace.run import Run
from glassloop.trace.token import Token

T = TypeVar("T")
_CONSTRAINTS = frozenset(("json_schema", "regex", "choice", "grammar", "response_format", "text"))
_RENDERED = {"messages", "input"}  # fields that a chat template renders
_FEW_TOKENS = 512  # that an answer may have to be built at once
MOST_TEXT = 2_000_000  # characters of all texts that one request brings for the model


class Service:
    def __init__(self, llm: LLM, settings: Settings, log: Log, store: Keeper | None = None) -> None:
        self.llm = llm
        llm.name = settings.served_name  # answers, records and errors must not tell paths of this machine
        self.settings = settings
        self.log = log
        self.shelf = Shelf(settings.keep, store)
        self.metrics = Metrics(llm, store)
        self.pools = Pools()
        self.bodies = Bodies(settings.most_body, self.pools)
        self.draining = False
        self.followers = 0  # streams of events that are open
        self._readings: set[Deadline] = set()
        self._hub: Hub | None = None
        self._longest: int | None = None

    @property
    def name(self) -> str:
        return self.settings.served_name

    def check_model(self, model: str | None) -> None:
        if model is not None and model != self.name:
            raise APIError(
                404,
                f"model is {model[:80]!r}; this server has {self.name!r}",
                param="model",
                code="model_not_found",
            )

    # ── before a request is let in ─────────────────────────────────────────────────────────────────────────

    def prepare(self, prompt: Prompt, sampling: Sampling) -> Request:
        """Checked as a whole, so that nothing is refused once an answer has begun. Takes a while where the
        prompt is long: not for the event loop's thread."""
        if isinstance(prompt, str):
            self.check_text(prompt)
        request = self.llm.prepare(prompt, sampling, compiled=self.compile(sampling))
        self.check_length(len(request.prompt_ids))
        return request

    async def prepared(self, request: HTTPRequest, body: Body, function: Callable[..., T], *args: Any) -> T:
        """Returns what a preparation returns, made on a thread: among the long ones where the request has a
        large body or a grammar, and apart from the others where a template renders a conversation. It is
        dropped if the client leaves while it waits."""
        pools = self.pools
        if request.state.long or not _CONSTRAINTS.isdisjoint(body.given):
            pool = pools.long
        else:
            pool = pools.short if _RENDERED.isdisjoint(body.given) else pools.chat
        return await unless_gone(request, pool.run(function, *args))

    async def reading(self, request: HTTPRequest, function: Callable[[Deadline], T]) -> T:
        """Returns what a function reads from the model on a thread, within the server's timeout. It ends
        early when the client leaves and when the server shuts down."""
        deadline = Deadline(self.settings.timeout, "the request")
        self._readings.add(deadline)
        try:
            return await unless_gone(request, self.pools.reading.run(function, deadline))
        except GlassloopError:
            if self.draining:
                raise APIError(503, "the server is shutting down", code="shutting_down") from None
            raise
        finally:
            deadline.cancel()
            self._readings.discard(deadline)

    async def shown(self, runs: Sequence[Run], build: Callable[[], T]) -> T:
        """Returns an answer about runs, which may have every token with its alternatives: a large one is
        built on a thread."""
        if sum(len(run.tokens) + len(run.prompt_tokens) for run in runs) <= _FEW_TOKENS:
            return build()
        return await self.pools.showing.run(build)

    def check_text(self, text: str, name: str = "prompt") -> None:
        """Refuse a text that is too long for the context, without encoding it to find out."""
        self.check_texts((text,), name, self.longest_text)

    def check_texts(self, texts: Iterable[str], name: str, most: int | None = None) -> None:
        """Refuse texts that are too long together, before anything is done with them."""
        total = 0
        for text in texts:
            total += len(text)
        most = MOST_TEXT if most is None else most
        if total > most:
            raise TextError(f"{name} has {total} characters; at most {most} are expected")

    @property
    def longest_text(self) -> int:
        """The most characters that a prompt can have: its tokens, each as long as the longest one."""
        if self._longest is None:
            tokenizer = self.llm.tokenizer
            self._longest = max(len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size))
        return min(self._longest * self.most_prompt, MOST_TEXT)

    def check_length(self, tokens: int, name: str = "prompt", note: str = "") -> None:
        if tokens > self.most_prompt:
            raise TextError(f"{name} has {tokens} tokens{note}; at most {self.most_prompt} are expected")

    def compile(self, sampling: Sampling) -> Compiled:
        """Returns all that is built from the options of a request, or raises what is wrong with them. Not for
        the event loop's thread."""
        return self.llm.compile(sampling)

    @property
    def most_prompt(self) -> int:
        return min(self.settings.most_prompt or self.llm.config.context, self.llm.config.context)

    # ── starting and ending ────────────────────────────────────────────────────────────────────────────────

    def start(
        self,
        requests: Sequence[Request],
        tree: Tree | None = None,
        *,
        names: Sequence[str | None] = (),
        limit: int | None = None,
        chat: bool = False,
    ) -> list[Live]:
        """Let them in, all or none, as runs of one tree. `limit`: each pauses after so many new tokens."""
        tree = tree or Tree()
        lives: list[Live] = []
        try:
            for place, request in enumerate(requests):
                made = [Live(run, tree, names[place] if names else None) for run in request.runs]
                for live in made:
                    live.chat = chat
                    live.limit = None if limit is None else live.told + len(request.forced) + limit
                lives += made
                self._submit(request, made)
        except Exception as error:
            for live in lives:
                if live.request is not None:
                    self.llm.cancel(live.request)
                    self.shelf.forget(live, for_good=True)
            raise as_api_error(error) from error
        return lives

    async def go_on(self, http: HTTPRequest, body: Body, live: Live, tokens: int | None) -> None:
        """Continue a run that was stopped, with its own options and luck, as if it had never stopped."""
        run = live.run
        self._check_paused(live)
        request = await self.prepared(http, body, self._rest, run)
        self._check_paused(live)  # nothing else has continued it meanwhile
        before = run.finish_reason, run.stop_reason, run.tail
        run.finish_reason, run.stop_reason, run.tail = None, None, ""
        live.limit = None if tokens is None else len(run.tokens) + tokens
        live.told = len(run.tokens)
        try:
            self._submit(request, [live])
        except Exception as error:
            run.finish_reason, run.stop_reason, run.tail = before
            raise as_api_error(error) from error

    def _rest(self, run: Run) -> Request:
        # A run that was read from a file may have options beyond the server's limits.
        make_sampling({**run.sampling.to_dict(), "n": 1}, self.settings)
        return self.llm.prepare_rest(run, timeout=self.settings.timeout)

    def _check_paused(self, live: Live) -> None:
        run = live.run
        if live.status != "paused":
            raise APIError(
                409,
                f"run {run.id} is {live.status}"
                + (f" (it ended by {run.finish_reason})" if run.finish_reason else "")
                + "; only one that was stopped or paused goes on. Fork it at its end instead",
                code="not_paused",
            )

    def _submit(self, request: Request, lives: list[Live]) -> None:
        if self._hub is None:
            self._hub = Hub(asyncio.get_running_loop(), self._deliver)
        if any(live.limit is not None for live in lives):
            request.drafts = False  # a guess that is right would run past the pause
        hub, by_run = self._hub, {id(live.run): live for live in lives}

        def tell(run: Run, token: Token | None) -> None:
            live = by_run[id(run)]
            hub.put(live, token)
            if live.limit is not None and len(run.tokens) >= live.limit:
                self.llm.cancel(request)

        request.listener = tell
        self.llm.submit(request)
        for live in lives:
            live.request = request
            self.shelf.add(live)
            live.tree.add(Event("run", live, live.told, None))

    def _deliver(self, live: Live, token: Token | None) -> None:
        if token is not None:
            live.tree.add(Event("token", live, live.told, token))
            live.told += 1
            return
        run, live.request = live.run, None
        live.limit = None
        live.tree.add(Event("end", live, live.told, None))
        self.metrics.ended(run, run.fork_at or 0)
        self.log.run(run, run.prompt)
        self.shelf.ended(live)

    def cancel(self, lives: Sequence[Live]) -> None:
        for request in {live.request for live in lives if live.request is not None}:
            self.llm.cancel(request)

    def end_all(self) -> None:
        """The server ends; so does what still runs."""
        self.cancel(self.shelf.running())
        for deadline in self._readings:
            deadline.cancel()

    # ── following ──────────────────────────────────────────────────────────────────────────────────────────

    def enter(self, requests: Sequence[Request], **options: Any) -> list[Live]:
        """Start runs that somebody waits for; when nobody does any more, `leave` ends them."""
        lives = self.start(requests, **options)
        for live in lives:
            live.users += 1
        return lives

    def leave(self, lives: Sequence[Live]) -> None:
        self.cancel(lives)
        for live in lives:
            live.users -= 1
        self.shelf.trim()

    async def finish(self, requests: Sequence[Request], **options: Any) -> list[Live]:
        """Runs to their end. Those of a search that found fewer texts are not among them."""
        lives = self.enter(requests, **options)
        try:
            async for _ in self.events(lives):
                pass
            runs = {run for request in requests for run in request.runs}
            found = [live for live in lives if live.run in runs]
            for live in found:
                self.raise_if_failed(live)
            return found
        finally:
            self.leave(lives)

    async def events(
        self, lives: Sequence[Live], beat: float | None = None
    ) -> AsyncGenerator[Event | None, None]:
        """Tokens and ends of runs that were started together; None when nothing has come for a while."""

        def over() -> bool:
            return all(live.request is None for live in lives)

        mine = set(lives)
        async for _, event in lives[0].tree.follow(0, over, beat):
            if event is None or (event.kind != "run" and event.live in mine):
                yield event

    def raise_if_failed(self, live: Live) -> None:
        """An answer that the client should not take for one."""
        run = live.run
        if run.finish_reason == "error":
            raise as_api_error(run.error or RuntimeError(run.stop_reason))
        if run.finish_reason == "cancelled" and self.draining:
            raise APIError(503, "the server is shutting down", code="shutting_down")
