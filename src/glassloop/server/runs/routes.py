"""`/api/runs`: runs themselves, for the studio and for anyone. docs/server.md has every shape."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request
from pydantic import Field
from starlette.responses import Response

from glassloop.engine.llm import Prompt
from glassloop.engine.request import Request as EngineRequest
from glassloop.server.errors import APIError
from glassloop.server.fields import Ids, Name, Whole, many, texts_in
from glassloop.server.openai import answers
from glassloop.server.openai.conversation import Messages, encode
from glassloop.server.operation.bodies import BodyRoute
from glassloop.server.options import Body, SamplingOptions, make_sampling, options_of
from glassloop.server.runs import shapes, stored
from glassloop.server.runs.state import Live, Tree
from glassloop.server.service import Service
from glassloop.server.streaming import BEAT, JSON, STILL_HERE, EventStream, event

Id = Annotated[str, Path(max_length=64)]
MOST_FOLLOWERS = 256  # streams of events of runs and trees
Tokens = Annotated[int | None, Field(ge=1, le=1_000_000)]
_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}


class Strategy(Body):
    name: str = Field(max_length=200)
    sampling: SamplingOptions | None = None  # type: ignore[valid-type]


class StartBody(Body):
    prompt: str | None = None
    token_ids: Ids | None = None
    messages: Messages | None = None
    sampling: SamplingOptions | None = None  # type: ignore[valid-type]
    strategies: many(Strategy, most=32, least=1) | None = None  # type: ignore[valid-type]
    pause_after: Tokens = None
    tree: str | None = Field(None, max_length=64)


class ForkBody(Body):
    at: Whole
    token: Whole | Name | None = None
    sampling: SamplingOptions | None = None  # type: ignore[valid-type]
    pause_after: Tokens = None


class EditBody(Body):
    at: Whole
    text: str = Field(min_length=1)
    sampling: SamplingOptions | None = None  # type: ignore[valid-type]
    pause_after: Tokens = None


class StepBody(Body):
    tokens: Tokens = 1


def router(service: Service) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, prefix="/api", tags=["runs"], responses=answers.ERRORS)

    def summaries(lives: list[Live], status: int = 200) -> Response:
        return JSON({"runs": [shapes.summary(service, live) for live in lives]}, status)

    @routes.get("/runs", response_model=shapes.Runs)
    async def runs(
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        tree: Annotated[str | None, Query(max_length=64)] = None,
    ) -> Response:
        found = await service.shelf.newest(limit, tree)
        return await service.pools.showing.run(lambda: JSON({"runs": stored.summaries(service, found)}))

    @routes.post("/runs", response_model=shapes.Runs, status_code=201)
    async def start(request: Request, body: StartBody) -> Response:
        tree = None if body.tree is None else await service.shelf.tree(body.tree)
        requests, names = await service.prepared(request, body, _requests, service, body)
        lives = service.start(
            requests, tree, names=names, limit=body.pause_after, chat=body.messages is not None
        )
        return summaries(lives, 201)

    @routes.get("/runs/{id}", response_model=shapes.WholeRun)
    async def run(id: Id, alternatives: Annotated[int, Query(ge=0, le=64)] = 64) -> Response:
        live = await service.shelf.get(id)
        return await service.pools.showing.run(lambda: JSON(shapes.whole_run(service, live, alternatives)))

    @routes.delete("/runs/{id}", status_code=204, response_class=Response)
    async def forget(id: Id) -> Response:
        await service.shelf.remove(id)
        return Response(status_code=204)

    @routes.get("/runs/{id}/events", response_class=Response, responses=_STREAM)
    async def run_events(
        id: Id,
        request: Request,
        after: Annotated[int | None, Query(ge=0)] = None,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        live = await service.shelf.get(id)

        def over() -> bool:
            return live.request is None

        return _followed(service, _events(service, live.tree, _after(after, last_event_id), over, live))

    @routes.get("/trees/{id}/events", response_class=Response, responses=_STREAM)
    async def tree_events(
        id: Id,
        request: Request,
        after: Annotated[int | None, Query(ge=0)] = None,
        close: bool = False,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        tree = await service.shelf.tree(id)

        def over() -> bool:
            return not tree.lives or ((close or service.draining) and not tree.busy)

        return _followed(service, _events(service, tree, _after(after, last_event_id), over))

    @routes.post("/runs/{id}/fork", response_model=shapes.Runs, status_code=201)
    async def fork(id: Id, request: Request, body: ForkBody) -> Response:
        live = await service.shelf.get(id)
        return summaries(await _fork(service, request, live, body, token=body.token), 201)

    @routes.post("/runs/{id}/edit", response_model=shapes.Runs, status_code=201)
    async def edit(id: Id, request: Request, body: EditBody) -> Response:
        live = await service.shelf.get(id)
        return summaries(await _fork(service, request, live, body, text=body.text), 201)

    @routes.post("/runs/{id}/step", response_model=shapes.Summary)
    async def step(id: Id, request: Request, body: StepBody) -> Response:
        live = await service.shelf.get(id)
        await service.go_on(request, body, live, body.tokens)
        return JSON(shapes.summary(service, live))

    @routes.post("/runs/{id}/stop", response_model=shapes.Summary)
    async def stop(id: Id) -> Response:
        live = await service.shelf.get(id)
        service.cancel([live])
        async for _ in live.tree.follow(len(live.tree.log), lambda: live.request is None):
            pass
        return JSON(shapes.summary(service, live))

    return routes


def _requests(service: Service, body: StartBody) -> tuple[list[EngineRequest], list[str | None]]:
    given = [name for name in ("prompt", "token_ids", "messages") if getattr(body, name) is not None]
    if len(given) != 1:
        told = f"{' and '.join(given)} are given" if given else "none of them is given"
        raise APIError(400, f"one of prompt, token_ids and messages is expected; {told}", param="prompt")
    prompt: Prompt
    if body.messages is not None:
        service.check_texts(texts_in(body.messages), "messages", service.longest_text)
        prompt = encode(service.llm.tokenizer, body.messages)
    else:
        prompt = body.prompt if body.prompt is not None else body.token_ids or []
    common: dict[str, Any] = {} if body.sampling is None else options_of(body.sampling)
    strategies: list[Strategy | None] = [*body.strategies] if body.strategies else [None]
    requests: list[EngineRequest] = []
    names: list[str | None] = []
    for strategy in strategies:
        options = dict(common)
        if strategy is not None and strategy.sampling is not None:
            options |= options_of(strategy.sampling)
        sampling = make_sampling(options, service.settings)
        if sampling.beam_width > 1 and body.pause_after is not None:
            raise APIError(400, "pause_after is given; a beam search cannot pause", param="pause_after")
        requests.append(service.prepare(prompt, sampling))
        names.append(None if strategy is None else strategy.name)
    if sum(len(request.runs) for request in requests) > service.settings.most_choices:
        raise APIError(
            400, f"strategies ask for more than {service.settings.most_choices} runs", param="strategies"
        )
    return requests, names


async def _fork(
    service: Service, request: Request, live: Live, body: ForkBody | EditBody, **what: Any
) -> list[Live]:
    run = live.run

    def prepare() -> EngineRequest:
        if isinstance(body, EditBody):
            service.check_text(body.text, "text")
        given: dict[str, Any] = {} if body.sampling is None else options_of(body.sampling)
        # The options of a run that was read from a file are held to the server's limits like any others.
        before = {**replace(run.sampling, seed=run.seed).to_dict(), "n": 1, "beam_width": 1}
        options = make_sampling({**before, **given}, service.settings)
        made = service.llm.prepare_fork(run, body.at, sampling=options, **what)
        made.compiled  # noqa: B018  (raises what is wrong with the options)
        service.check_length(len(run.prompt_ids) + body.at + len(made.forced), "at")
        return made

    made = await service.prepared(request, body, prepare)
    return service.start([made], live.tree, limit=body.pause_after, chat=live.chat)


def _followed(service: Service, events: AsyncGenerator[bytes, None]) -> Response:
    """Returns a stream of events. It may stay open for ever, so there are only so many of them."""
    if service.followers >= MOST_FOLLOWERS:
        raise APIError(
            429,
            f"{service.followers} streams of events are open; at most {MOST_FOLLOWERS} are expected",
            code="too_many_followers",
            headers={"Retry-After": "2"},
        )
    service.followers += 1

    def release() -> None:
        service.followers -= 1

    return EventStream(events, release=release)


def _after(after: int | None, last_event_id: str | None) -> int:
    """A browser that comes back says so in the header; the query is for whoever cannot set one."""
    if last_event_id is not None and last_event_id.isascii() and last_event_id.isdigit():
        return int(last_event_id[:18])
    return after or 0


async def _events(
    service: Service, tree: Tree, after: int, over: Callable[[], bool], only: Live | None = None
) -> AsyncGenerator[bytes, None]:
    async for seq, each in tree.follow(after, over, BEAT):
        if each is None:
            yield STILL_HERE
        elif only is None or each.live is only:
            yield event(each.kind, shapes.event_shape(service, seq, each), seq)
