"""`search` in `POST /v1/chat/completions`: the answer of a search over several paths, in the shape of a chat.

Everything that a client can ask for is bounded: the number of paths and branches, and the seconds. Verifiers
are named; none of them runs code of the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from starlette.responses import Response

from glassloop.engine.deadline import Deadline
from glassloop.engine.request import Request
from glassloop.engine.thread import Busy
from glassloop.errors import GlassloopError, SamplingError
from glassloop.search.budget import Budget
from glassloop.search.methods import make_method
from glassloop.search.running import Running
from glassloop.search.search import Search
from glassloop.search.solution import Solution
from glassloop.search.solve import MAX_TOKENS, TEMPERATURE, named_extractor, named_verifier, submit, withdraw
from glassloop.server.http.errors import APIError, as_api_error, invalid, shutting_down
from glassloop.server.http.streaming import JSON, STILL_HERE, EventStream, data
from glassloop.server.openai.chat_choices import ChatBody, ChatChoices
from glassloop.server.openai.generation import PromptDetails, UsageAnswer, run_headers
from glassloop.server.openai.search_body import SearchBody
from glassloop.server.service import Service

T = TypeVar("T")
_PROGRESS = 1.0  # seconds between two reports of a stream
_BRANCHES = 8  # times the most choices of a request: all branches of one search


class SearchChat(ChatChoices):
    """A chat that is answered by a search."""

    def __init__(self, service: Service, body: ChatBody) -> None:
        assert body.search is not None
        self._search_body = body.search
        super().__init__(service, body)
        self._search = _make(service, body, self._search_body, self.requests[0])
        self._solution: Solution | None = None

    # ── answers ────────────────────────────────────────────────────────────────────────────────────────────

    async def whole(self) -> Response:
        async with aclosing(self._rounds(None)) as rounds:
            async for _ in rounds:
                pass
        solution = self._found()
        runs = [path.run for path in solution.paths]
        won, report = self._won(), self._shown_search(solution)

        def render() -> Response:
            answer = self.answer([won])
            answer["search"] = report
            return JSON(answer, headers=run_headers([won]))

        return await self.service.threads.render(runs, render)

    def stream(self) -> Response:
        if self.service.draining:
            raise shutting_down()
        return EventStream(self._search_chunks())

    async def _search_chunks(self) -> AsyncGenerator[bytes, None]:
        """Yields a report of the search about every second, then its text, and the whole result."""
        try:
            yield self.begin(self.requests[0].runs)
            async with aclosing(self._rounds(_PROGRESS)) as rounds:
                async for _ in rounds:
                    yield await self._report()
            won = self._won()
            thought, content, calls = self._turn.parts(won)
            text = self.chunk(0, delta={"reasoning_content": thought}) if thought else b""
            text += self.chunk(0, self._shown(won.tokens), delta={"content": content})
            for place, call in enumerate(calls):
                text += self.chunk(0, delta={"tool_calls": [{"index": place, **call}]})
            yield text
            choice = self.choice(0, won)
            reasons = {"finish_reason": choice["finish_reason"], "stop_reason": choice["stop_reason"]}
            yield self._with_search(self._shown_search(self._found()), **reasons)
            yield await self.finish()
        except Exception as error:
            yield self.failed(as_api_error(error))

    async def _report(self) -> bytes:
        """Returns a report of the search; only a sign of life if the server is too busy to make one."""
        try:
            return self._with_search(await self.service.pools.searching.run_for(self.client, self._progress))
        except Busy:
            return STILL_HERE

    def _progress(self) -> dict[str, Any]:
        """Returns what a stream reports of the search while it runs."""
        paths = [self._search.preview(path) for path in self._search.paths]
        return {
            "running": sum(path.running for path in paths),
            "branches": len(paths),
            "tokens": self._search.tokens,
            "seconds": round(self._search.seconds, 3),
            "values": [path.value for path in paths if not path.running and path.value is not None],
        }

    def _with_search(self, report: dict[str, Any], **choice: Any) -> bytes:
        part = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": None, **choice}
        return data({**self._frame, "choices": [part], "search": report})

    def usage(self) -> UsageAnswer:
        """Returns the tokens of all paths. They share the prompt, which is counted once."""
        prompt, answer = len(self.requests[0].prompt_ids), self._search.tokens
        first = next(iter(self._search.paths), None)
        cached = 0 if first is None else first.run.cached_tokens
        return UsageAnswer(
            prompt_tokens=prompt,
            completion_tokens=answer,
            total_tokens=prompt + answer,
            prompt_tokens_details=PromptDetails(cached_tokens=cached),
        )

    def _shown_search(self, solution: Solution) -> dict[str, Any]:
        """Returns what the answer shows of the search; the paths and decisions if they are asked for."""
        names = ("method", "options", "seed", "budget", "rounds", "answer", "value", "votes", "usage", "cut")
        report = {name: solution.record[name] for name in names}
        report["id"] = solution.paths[0].run.id  # of /api/runs/{id}/search
        if self._search_body.paths:
            whole = solution.to_dict()
            report |= {"paths": whole["paths"], "decisions": whole["decisions"]}
        return report

    def _found(self) -> Solution:
        assert self._solution is not None
        return self._solution

    def _won(self) -> Any:
        won = self._found().run
        if won is None:
            # The time was over, or the search cancelled, before any path had a token.
            raise Deadline(self._search.budget.seconds, "the search").error()
        return won

    # ── the search ─────────────────────────────────────────────────────────────────────────────────────────

    async def _rounds(self, every: float | None) -> AsyncGenerator[None, None]:
        """Runs the search. Yields after each round and, with `every`, after this many seconds; if it is
        closed before its end, since the client has disconnected, the search ends."""
        search, service, home = self._search, self.service, asyncio.get_running_loop()
        requests: Sequence[Request] = ()
        service.control.searches.add(search)
        try:
            while requests := await service.pools.searching.run_for(self.client, search.next_round):
                over = asyncio.Event()
                wake = partial(home.call_soon_threadsafe, over.set)
                submit(search, requests, wake, may_refuse=search.round == 1)
                while not over.is_set():
                    try:
                        async with asyncio.timeout(every):
                            await over.wait()
                    except TimeoutError:
                        yield
                if service.draining and search.cancelled:
                    raise shutting_down()
                yield
            self._solution = await service.pools.searching.run_for(self.client, search.solution)
            await service.control.keep_search(self._solution)
        finally:
            service.control.searches.discard(search)
            if self._solution is None:
                search.cancel("the client has disconnected", unwanted=True)
                withdraw(search, requests, wait=False)


def _make(service: Service, body: ChatBody, search_body: SearchBody, prepared: Request) -> Running:
    """Returns the search that a body asks for, within the server's limits."""
    options = dict(search_body.options or {})
    count = search_body.n if search_body.n is not None else search_body.samples
    if count is not None:
        options["n"] = count
    try:
        service.llm.check_computes("search")
        method = make_method(search_body.method, options)
        _check_options(service, method)
        sampling = prepared.sampling
        if "temperature" not in body.given and sampling.temperature == 1.0:
            sampling = replace(sampling, temperature=TEMPERATURE)
        if body.max_tokens is None and body.max_completion_tokens is None:
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, MAX_TOKENS))
        sampling = method.sampling(sampling)
        request = prepared
        if sampling != prepared.sampling:
            # Only options that no automaton is made from are changed.
            compiled = replace(prepared.compiled, sampling=sampling)
            run = prepared.runs[0]
            request = service.llm.prepare(prepared.prompt_ids, sampling, compiled=compiled)
            request.runs[0].messages, request.runs[0].id = run.messages, run.id
        return Running(
            service.llm,
            request,
            method,
            _budget(service, search_body),
            extractor=_named("extract", named_extractor, search_body.extract),
            verifier=_named("verify", named_verifier, search_body.verify),
            judge=_named("judge", named_verifier, search_body.judge),
            named={"extract": search_body.extract, "verify": search_body.verify, "judge": search_body.judge},
        )
    except (APIError, Busy, SamplingError):  # the last is about an option of the paths, beside `search`
        raise
    except GlassloopError as error:
        field = "search" if error.field is None else f"search.{error.field}"
        raise invalid(field, f"search: {error}") from None


def _named(field: str, find: Callable[[str | None], T], name: str | None) -> T:
    """Returns an extractor or a verifier by its name. An error in its argument is one of the field."""
    try:
        return find(name)
    except Busy:
        raise
    except GlassloopError as error:
        raise invalid(f"search.{field}", f"search.{field}: {error}") from None


def _check_options(service: Service, method: Search) -> None:
    most = service.settings.most_choices
    for name, value in method.options.items():
        if name in ("n", "warmup", "wave", "width", "keep") and isinstance(value, int) and value > most:
            raise invalid(f"search.{name}", f"search.{name} is {value}; at most {most} is expected")


def _budget(service: Service, search_body: SearchBody) -> Budget:
    """Returns the budget of a search: that of the client, and no more than the server allows."""
    budget = Budget.of(None if search_body.budget is None else search_body.budget.given)
    branches = _BRANCHES * service.settings.most_choices
    seconds = service.settings.timeout
    return Budget(
        budget.tokens,
        seconds if budget.seconds is None else min(seconds, budget.seconds),
        branches if budget.branches is None else min(branches, budget.branches),
    )
