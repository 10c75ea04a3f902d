"""`Service`: where HTTP requests meet the engine. It checks, starts, follows and ends them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, Literal, TypeVar

from fastapi import Request as HTTPRequest

from glassloop.decode.compiled import Compiled
from glassloop.decode.sampling import Sampling
from glassloop.decode.stop import Pause
from glassloop.diffuse.write import DiffusionRequest
from glassloop.engine.deadline import Deadline
from glassloop.engine.protocol import Engine
from glassloop.engine.request import Request
from glassloop.engine.request_maker import Prompt
from glassloop.errors import GlassloopError, LengthError, ModelError
from glassloop.record.messages import Message
from glassloop.record.passes import PassRecord
from glassloop.record.run import Run
from glassloop.record.token import TakenBack, Token
from glassloop.search.running import Running
from glassloop.search.solution import Solution
from glassloop.search.solve import withdraw
from glassloop.server.http.bodies import Bodies
from glassloop.server.http.clients import SharedPlaces, client_of
from glassloop.server.http.errors import APIError, as_api_error, shutting_down
from glassloop.server.http.streaming import unless_gone
from glassloop.server.operation.logs import Log
from glassloop.server.operation.metrics import Metrics
from glassloop.server.operation.settings import ServerSettings, public_name
from glassloop.server.operation.workers import Pools, Workers
from glassloop.server.runs.index import RunIndex
from glassloop.server.runs.state import Event, Hub, RunState, TreeState
from glassloop.server.runs.storage import RunStorage
from glassloop.server.sampling_options import Body, make_sampling

T = TypeVar("T")
LoadState = Literal["loaded", "loading", "unloaded"]  # a request to a model that is not loaded waits for it
_VLLM = ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
# Fields that a grammar is made from.
_CONSTRAINTS = frozenset(
    ("json_schema", "regex", "choice", "grammar", "response_format", "text", "tools", *_VLLM)
)
_PATTERNS = frozenset(("search", "check"))  # fields with patterns and schemas of verifiers
_RENDERED = frozenset(("messages", "input"))  # fields that a chat template renders
_FEW_TOKENS = 512  # an answer with at most this many is rendered on the event loop
_MOST_NAMED = 20  # models and adapters that an error lists
MOST_FOLLOWERS = 256  # streams of events of runs and trees
MOST_TEXT = 2_000_000  # characters of all texts that one request brings for the model


def is_constrained(body: Body) -> bool:
    """Returns whether a request has a grammar or the like, in its own fields, its sampling or its strategies:
    to compile it may take seconds."""
    given = body.given
    if isinstance(given.get("text"), str):  # of an edit; that of a response says its format
        del given["text"]
    inner = [given.get("sampling"), *given.get("strategies", ())]
    return not _CONSTRAINTS.isdisjoint(given) or any(
        is_constrained(each) for each in inner if each is not None
    )


class Service:
    def __init__(
        self, llm: Engine, settings: ServerSettings, log: Log, storage: RunStorage | None = None
    ) -> None:
        self.llm = llm
        llm.name = settings.served_name  # answers, records and errors must not tell paths of this machine
        self.settings = settings
        self.log = log
        self.pools = Pools()
        self.runs = RunIndex(settings.in_memory, storage, self.pools.finding, apart=settings.separates_runs)
        self.metrics = Metrics(lambda: self.llm, storage)
        self.bodies = Bodies(settings.most_body, self.pools)
        self.draining = False
        self.state: LoadState = "loaded"
        self.neighbours: tuple[str, ...] = ()  # the names of other models at the same address
        self.followers = SharedPlaces(MOST_FOLLOWERS)  # streams of events that are open
        self.searches: set[Running] = set()  # those that run
        self._deadlines: set[Deadline] = set()  # of calls that read from the model now
        self._hub: Hub | None = None
        self._ending: set[asyncio.Task[None]] = set()  # runs that are told to have ended when they are stored
        self._fingerprint: str | None = None
        self._hashing = Lock()  # held while the model's files are hashed

    @property
    def name(self) -> str:
        return self.settings.served_name

    def public_name(self, model: str) -> str:
        """Returns the name of a run's model, which may be another than this server's, without its path."""
        return self.name if model == self.settings.model else public_name(model)

    @property
    def fingerprint(self) -> str | None:
        """What determines an answer beside the request: the model's files and the op set. None if the files
        cannot be read any more. Hashing them may take seconds: not for the event loop's thread."""
        with self._hashing:
            if self._fingerprint is None:
                with suppress(ModelError):
                    model, _, weights = self.llm.model_hash.partition("+")
                    parts = ["fp", model[:12], self.llm.op_set, weights]
                    self._fingerprint = re.sub(r"[^\w.]+", "-", "_".join(filter(None, parts)))
            return self._fingerprint

    # ── checking ───────────────────────────────────────────────────────────────────────────────────────────

    def adapter_of(self, model: str | None) -> str | None:
        """Returns the adapter of a model that a client has named "model:adapter", or None for the model
        itself. Raises if this server does not have it."""
        base, colon, adapter = (model or "").rpartition(":")
        if colon and base in self.settings.names and adapter in self.llm.adapters:
            return adapter
        self.check_model(model)
        return None

    def check_model(self, model: str | None) -> None:
        if model and model not in self.settings.names:  # an empty name is any model
            adapted = (f"{self.name}:{name}" for name in self.llm.adapters)
            known = [*self.settings.names, *adapted, *self.neighbours]
            listed = ", ".join(map(repr, known[:_MOST_NAMED])) + (" …" if len(known) > _MOST_NAMED else "")
            message = f"model is {model[:160]!r}; this server has {listed}"
            raise APIError(404, message, param="model", code="model_not_found")

    def check_text(self, text: str, name: str = "prompt") -> None:
        """Refuses a text that is too long for the context, without encoding it to find out."""
        self.check_texts((text,), name, self.longest_text)

    def check_texts(self, texts: Iterable[str], name: str, most: int = MOST_TEXT) -> None:
        """Refuses texts that are too long together, before anything is done with them."""
        total = sum(map(len, texts))
        if total > most:
            message = f"has {total} characters; at most {most} are expected"
            raise LengthError.about(name, message if most >= MOST_TEXT else message + self._context_length)

    def check_length(self, tokens: int, name: str = "prompt", note: str = "") -> None:
        most = self.most_prompt
        if tokens > most:
            message = f"has {tokens} tokens{note}; at most {most} are expected"
            raise LengthError.about(name, message + self._context_length)

    @property
    def _context_length(self) -> str:
        """What an error says of the context, in OpenAI's words: clients that shorten conversations look for
        them."""
        return f" (this model's maximum context length is {self.llm.config.context} tokens)"

    @property
    def most_prompt(self) -> int:
        """The most tokens that a prompt may have."""
        return min(self.settings.most_prompt or self.llm.config.context, self.llm.config.context)

    @property
    def longest_text(self) -> int:
        """The most characters that a prompt can have: its tokens, each as long as the longest one."""
        return min(self.llm.tokenizer.longest_token * self.most_prompt, MOST_TEXT)

    # ── work on threads ────────────────────────────────────────────────────────────────────────────────────

    def prepare(
        self,
        prompt: Prompt,
        sampling: Sampling,
        compiled: Compiled | None = None,
        messages: list[Message] | None = None,
    ) -> Request:
        """Returns a request that is checked as a whole, so that nothing is refused once an answer has begun.
        Takes a while where the prompt is long: not for the event loop's thread."""
        if isinstance(prompt, str):
            self.check_text(prompt)
        compiled = compiled or self.llm.compile(sampling)
        try:
            request = self.llm.prepare(prompt, sampling, compiled=compiled, messages=messages)
        except LengthError as error:
            raise LengthError(f"{error}{self._context_length}", field=error.field) from None
        self.check_length(len(request.prompt_ids))
        return request

    async def prepare_on_thread(
        self, request: HTTPRequest, body: Body, function: Callable[..., T], *args: Any
    ) -> T:
        """Returns what a preparation returns, called on a thread: of the pool for long ones where the request
        has a large body or a grammar, of another one where a template renders a conversation, and of that for
        searches where patterns are compiled. It is dropped if the client disconnects while it waits, and when
        the time of the request is over."""
        pools, given = self.pools, body.given
        if not _PATTERNS.isdisjoint(given):
            work = pools.searching.run_for(client_of(request), function, *args)
        elif request.state.long or is_constrained(body):
            work = pools.long.run_for(client_of(request), function, *args)
        else:
            work = (pools.short if _RENDERED.isdisjoint(given) else pools.chat).run(function, *args)
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await unless_gone(request.receive, work)
        except TimeoutError:
            raise Deadline(self.settings.timeout, "the request").error() from None

    async def read_model(
        self, request: HTTPRequest, function: Callable[[Deadline], T], pool: Workers | None = None
    ) -> T:
        """Returns what a function reads from the model on a thread, within the server's timeout. It ends
        early when the client disconnects and when the server shuts down. Each client has a share of the
        threads, which are those for reading if no `pool` is given."""
        deadline = Deadline(self.settings.timeout, "the request")
        self._deadlines.add(deadline)
        work = (pool or self.pools.reading).run_for(client_of(request), function, deadline)
        try:
            return await unless_gone(request.receive, work)
        except GlassloopError:
            if self.draining:
                raise shutting_down() from None
            raise
        finally:
            deadline.cancel()
            self._deadlines.discard(deadline)

    async def render(self, runs: Sequence[Run], build: Callable[[], T]) -> T:
        """Returns an answer about runs, which may have every token with its alternatives: a large one is
        built on a thread."""
        if sum(len(run.tokens) + len(run.prompt_tokens) for run in runs) <= _FEW_TOKENS:
            return build()
        return await self.pools.rendering.run(build)

    # ── starting and ending ────────────────────────────────────────────────────────────────────────────────

    def start(
        self,
        requests: Sequence[Request],
        tree: TreeState | None = None,
        *,
        names: Sequence[str | None] = (),
        limit: int | None = None,
    ) -> list[RunState]:
        """Starts all requests, or none, as runs of one tree. With `limit` each run pauses after this many new
        tokens."""
        tree = tree or TreeState()
        states: list[RunState] = []
        try:
            for place, request in enumerate(requests):
                made = [RunState(run, tree, names[place] if names else None) for run in request.runs]
                if limit is not None:
                    request.pause = Pause(made[0].sent + len(request.forced) + limit)
                states += made
                self._submit(request, made)
        except Exception as error:
            for state in states:
                if state.request is not None:
                    self.llm.cancel(state.request)
                    self.runs.forget(state, for_good=True)
            raise as_api_error(error) from error
        return states

    async def resume(self, http: HTTPRequest, body: Body, state: RunState, tokens: int | None) -> None:
        """Continues a run that was stopped, with its own options and luck, as if it had never stopped."""
        run = state.run
        _check_paused(state)
        request = await self.prepare_on_thread(http, body, self._rest, run)
        _check_paused(state)  # another request may have continued it meanwhile
        before = run.finish_reason, run.stop_reason, run.tail
        run.finish_reason, run.stop_reason, run.tail = None, None, ""
        request.pause = None if tokens is None else Pause(len(run.tokens) + len(request.forced) + tokens)
        state.sent = len(run.tokens)
        try:
            self._submit(request, [state])
        except Exception as error:
            run.finish_reason, run.stop_reason, run.tail = before
            raise as_api_error(error) from error

    def _rest(self, run: Run) -> Request:
        # A run that was read from a file may have options beyond the server's limits.
        make_sampling({**run.sampling.to_dict(), "n": 1}, self.settings)
        return self.llm.prepare_rest(run, timeout=self.settings.timeout)

    def _submit(self, request: Request, states: list[RunState]) -> None:
        if self._hub is None:
            self._hub = Hub(asyncio.get_running_loop(), self._deliver)
        hub, by_run = self._hub, {id(state.run): state for state in states}

        def listen(run: Run, token: Token | None) -> None:
            hub.put(by_run[id(run)], token)

        def listen_back(run: Run, token: Token | None) -> None:
            """Listens to runs that may take tokens back: another run then continues."""
            if isinstance(token, TakenBack):
                old = by_run[id(run)]
                made = by_run[id(token.run)] = RunState(token.run, old.tree, old.name, old.owner)
                old.heir = made
                hub.put(old, token)
            else:
                listen(run, token)

        request.listener = listen_back if request.sampling.revise else listen
        if isinstance(request, DiffusionRequest):
            request.on_pass = lambda run, record: hub.put(by_run[id(run)], record)
        self.llm.submit(request)
        for state in states:
            state.request = request
            self.runs.add(state)
            state.tree.add(Event("run", state, state.sent, None))

    def _deliver(self, state: RunState, token: Token | PassRecord | None) -> None:
        """Adds a token or a pass, or with None the end of a run, to the events of its tree."""
        if isinstance(token, (TakenBack, PassRecord)):
            if isinstance(token, PassRecord):
                state.tree.add(Event("pass", state, token.number, None))
            else:
                self._hand_over(state, token)
            return
        if token is not None:
            state.tree.add(Event("token", state, state.sent, token))
            state.sent += 1
            self.runs.note_progress()
            return
        if self.runs.keep_ended(state):
            ending = asyncio.get_running_loop().create_task(self._end_when_written(state))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
        else:
            self._end(state)

    async def _end_when_written(self, state: RunState) -> None:
        await self.runs.written()
        self._end(state)

    def _end(self, state: RunState) -> None:
        """Tells that a run has ended."""
        run, state.request = state.run, None
        state.tree.add(Event("end", state, state.sent, None))
        self.metrics.ended(run, run.fork_at or 0)
        self.log.run(run)
        self.runs.trim()

    def _hand_over(self, state: RunState, token: TakenBack) -> None:
        """Ends a run whose last tokens were taken back; the run that continues is one more of its tree."""
        made = state.successor = state.heir
        assert made is not None
        made.request, made.users = state.request, state.users
        state.tree.add(Event("taken_back", state, token.to, token))
        self.runs.add(made)
        made.tree.add(Event("run", made, made.sent, None))
        self.runs.keep_ended(state)
        self._end(state)

    def cancel(self, states: Sequence[RunState]) -> None:
        """Ends runs; others of their requests go on."""
        asked: dict[Request, list[Run]] = {}
        for state in [state.latest for state in states]:
            if state.request is not None:
                asked.setdefault(state.request, []).append(state.run)
        for request, runs in asked.items():
            if all(run in runs for run in request.runs if run.finish_reason is None):
                self.llm.cancel(request)
            else:
                for run in runs:
                    self.llm.cancel(request, run=run)

    async def remove(self, id: str) -> None:
        """Removes a run everywhere, from what the engine keeps of its text too."""
        run = await self.runs.remove(id)
        if run is not None:
            await self.pools.removing.run(self.llm.forget, run)

    def end_all(self) -> None:
        """Cancels everything that is computed, since the server ends."""
        self.cancel(self.runs.running())
        for search in self.searches:
            search.cancel("the server has ended", unwanted=True)
            withdraw(search, search.requests, wait=False)
        for deadline in self._deadlines:
            deadline.cancel()

    async def keep_search(self, solution: Solution) -> None:
        """Adds the runs of a search that is over to the list of runs, as one tree."""
        tree = TreeState()
        states = [RunState(path.run, tree, f"path {path.number}") for path in solution.paths]
        for path, state in zip(solution.paths, states, strict=True):
            for kind in ("run", "end"):
                tree.add(Event(kind, state, state.sent, None))
            self.metrics.ended(path.run, path.kept)
            self.log.run(path.run)
        await self.runs.add_ended(states)

    # ── following ──────────────────────────────────────────────────────────────────────────────────────────

    def start_for_client(self, requests: Sequence[Request], **options: Any) -> list[RunState]:
        """Starts runs that a client waits for. `release` ends them when it does not any more."""
        states = self.start(requests, **options)
        for state in states:
            state.users += 1
        return states

    def release(self, states: Sequence[RunState]) -> None:
        self.cancel(states)
        for each in states:
            state: RunState | None = each
            while state is not None:
                state.users -= 1
                state = state.successor
        self.runs.trim()

    async def finish(self, requests: Sequence[Request], **options: Any) -> None:
        """Computes requests to their end, and raises if one of them failed."""
        states = self.start_for_client(requests, **options)
        try:
            async for _ in self.events(states):
                pass
            runs = {run for request in requests for run in request.runs}
            for state in [each.latest for each in states]:
                if state.run in runs:  # a beam search may have found fewer texts
                    self.raise_if_failed(state)
        finally:
            self.release(states)

    async def events(
        self, states: Sequence[RunState], keep_alive: float | None = None
    ) -> AsyncGenerator[Event | None, None]:
        """Yields tokens and ends of runs that were started together, and None when nothing has come for
        `keep_alive` seconds. If tokens of a run are taken back, this event comes instead of its end, and what
        comes next is from its successor."""

        def over() -> bool:
            return all(state.latest.request is None for state in states)

        own = set(states)
        async for _, event in states[0].tree.follow(0, over, keep_alive):
            if event is None:
                yield event
            elif event.kind not in ("run", "pass") and event.state in own:
                if event.kind == "taken_back" and event.state.successor is not None:
                    own.discard(event.state)
                    own.add(event.state.successor)
                yield event

    def raise_if_failed(self, state: RunState) -> None:
        """Raises where a run has ended without an answer that a client could use."""
        run = state.run
        if run.finish_reason == "error":
            raise as_api_error(run.error or RuntimeError(run.stop_reason))
        if run.finish_reason == "cancelled" and self.draining:
            raise shutting_down()


def _check_paused(state: RunState) -> None:
    if state.is_elsewhere:
        message = f"run {state.run.id} is computed by another server; it can be continued when that has ended"
        raise APIError(409, message, code="not_paused")
    if state.status != "paused":
        reason = state.run.finish_reason
        ended = f" (it ended by {reason})" if reason else ""
        instead = "Fork it at its end instead"
        if state.run.diffusion is not None:
            instead = "This one was written by diffusion: send its text as a prompt instead"
        message = (
            f"run {state.run.id} is {state.status}{ended}; only a run that was stopped or paused can be"
            f" continued. {instead}"
        )
        raise APIError(409, message, code="not_paused")
