"""Work of requests that would hold up the event loop, on threads: preparing a request, reading from the
model, and building a large answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fastapi import Request as HTTPRequest

from glassloop.engine.deadline import Deadline
from glassloop.errors import GlassloopError
from glassloop.record.run import Run
from glassloop.server.http.clients import client_of
from glassloop.server.http.errors import shutting_down
from glassloop.server.http.streaming import unless_gone
from glassloop.server.operation.settings import ServerSettings
from glassloop.server.operation.workers import Pools, Workers
from glassloop.server.sampling_options import Body

T = TypeVar("T")
_ANTHROPIC = ("output_config", "output_format")
_OLLAMA = ("format",)
_VLLM = ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
# Fields that a grammar is made from.
_CONSTRAINTS = frozenset(
    (
        "json_schema",
        "regex",
        "choice",
        "grammar",
        "response_format",
        "text",
        "tools",
        *_VLLM,
        *_ANTHROPIC,
        *_OLLAMA,
    )
)
_PATTERNS = frozenset(("search", "check"))  # fields with patterns and schemas of verifiers
_RENDERED = frozenset(("messages", "input"))  # fields that a chat template renders
_FEW_TOKENS = 512  # an answer with at most this many is rendered on the event loop


def is_constrained(body: Body) -> bool:
    """Returns whether a request has a grammar or the like, in its own fields, its sampling or its strategies:
    to compile it may take seconds."""
    fields = body.given
    if isinstance(fields.get("text"), str):  # of an edit; that of a response says its format
        del fields["text"]
    options = fields.get("options")
    inner = [fields.get("sampling"), *fields.get("strategies", ())]
    inner += [options] if isinstance(options, Body) else []
    return not _CONSTRAINTS.isdisjoint(fields) or any(
        is_constrained(each) for each in inner if each is not None
    )


class ThreadWork:
    def __init__(self, settings: ServerSettings, pools: Pools, is_draining: Callable[[], bool]) -> None:
        self._settings = settings
        self._pools = pools
        self._is_draining = is_draining
        self._deadlines: set[Deadline] = set()  # of calls that read from the model now

    async def prepare(self, request: HTTPRequest, body: Body, function: Callable[..., T], *args: Any) -> T:
        """Returns what a preparation returns, called on a thread: of the pool for long ones where the request
        has a large body or a grammar, of another one where a template renders a conversation, and of that for
        searches where patterns are compiled. It is dropped if the client disconnects while it waits, and when
        the time of the request is over."""
        pools, fields = self._pools, body.given
        if not _PATTERNS.isdisjoint(fields):
            work = pools.searching.run_for(client_of(request), function, *args)
        elif request.state.long or is_constrained(body):
            work = pools.long.run_for(client_of(request), function, *args)
        else:
            renders = body.RENDERS or not _RENDERED.isdisjoint(fields)
            work = (pools.chat if renders else pools.short).run(function, *args)
        try:
            async with asyncio.timeout(self._settings.timeout):
                return await unless_gone(request.receive, work)
        except TimeoutError:
            raise Deadline(self._settings.timeout, "the request").error() from None

    async def read_model(
        self, request: HTTPRequest, function: Callable[[Deadline], T], pool: Workers | None = None
    ) -> T:
        """Returns what a function reads from the model on a thread, within the server's timeout. It ends
        early when the client disconnects and when the server shuts down. Each client has a share of the
        threads, which are those for reading if no `pool` is given."""
        deadline = Deadline(self._settings.timeout, "the request")
        self._deadlines.add(deadline)
        work = (pool or self._pools.reading).run_for(client_of(request), function, deadline)
        try:
            return await unless_gone(request.receive, work)
        except GlassloopError:
            if self._is_draining():
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
        return await self._pools.rendering.run(build)

    def end_all(self) -> None:
        """Ends all calls that read from the model."""
        for deadline in self._deadlines:
            deadline.cancel()
