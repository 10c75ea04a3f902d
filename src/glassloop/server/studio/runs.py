"""`/api/runs`: starting, listing, forking and removing runs. docs/server.md has every shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import AfterValidator, Field
from starlette.responses import Response

from glassloop.decode.sampling import merge_options
from glassloop.engine.request import Request as EngineRequest
from glassloop.engine.request_maker import Prompt
from glassloop.record.run_name import run_id
from glassloop.record.store.listing import MOST_SEARCH, Listing
from glassloop.server.diffusion_options import DiffusionOptions, diffused
from glassloop.server.http.bodies import BodyRoute
from glassloop.server.http.body_fields import Ids, Name, Whole, many
from glassloop.server.http.clients import client_of
from glassloop.server.http.errors import ERRORS, invalid
from glassloop.server.http.streaming import (
    JSON,
    unless_gone,
)
from glassloop.server.openai.conversation import Messages, as_recorded, encode_messages
from glassloop.server.runs.control import check_paused
from glassloop.server.runs.state import RunState
from glassloop.server.sampling_options import Body, SamplingOptions, make_sampling, options_of
from glassloop.server.service import Service
from glassloop.server.studio.summaries import BriefList, RunList, Runs, Summary, run_list, summary
from glassloop.server.studio.whole_runs import WholeRun, whole_run

Id = Annotated[str, Path(max_length=64), AfterValidator(run_id)]  # of a run, or of an answer
TokenCount = Annotated[int | None, Field(ge=1, le=1_000_000)]


class Strategy(Body):
    name: str = Field(max_length=200)
    sampling: SamplingOptions | None = None  # type: ignore[valid-type]
    diffusion: DiffusionOptions | None = None


class PromptBody(Body):
    """A prompt in one of its forms, and how it is answered."""

    prompt: str | None = None
    token_ids: Ids | None = None
    messages: Messages | None = None
    sampling: SamplingOptions | None = None  # type: ignore[valid-type]
    diffusion: DiffusionOptions | None = None  # if the text is written by filling masks


class StartBody(PromptBody):
    strategies: many(Strategy, most=32, least=1) | None = None  # type: ignore[valid-type]
    pause_after: TokenCount = None
    tree: str | None = Field(None, max_length=64)


class BranchBody(Body):
    """What a fork and an edit share."""

    at: Whole
    sampling: SamplingOptions | None = None  # type: ignore[valid-type]
    pause_after: TokenCount = None


class ForkBody(BranchBody):
    token: Whole | Name | None = None


class TextForkBody(BranchBody):
    text: str = Field(min_length=1)


class StepBody(Body):
    tokens: TokenCount = 1


def router(service: Service) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, prefix="/api", tags=["runs"], responses=ERRORS)

    def started(states: list[RunState]) -> Response:
        return JSON(Runs(runs=[summary(service, state) for state in states]), 201)

    @routes.get("/runs", response_model=RunList | BriefList)
    async def runs(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        tree: Annotated[str | None, Query(max_length=64)] = None,
        search: Annotated[str, Query(max_length=MOST_SEARCH)] = "",
        before: Annotated[str | None, Query(max_length=64)] = None,
        brief: bool = False,
    ) -> Response:
        """List runs, the newest first. `search` is a part of the title, the prompt, the conversation or the
        text, in upper or lower case, or the beginning of an id; `before` is the id of the last run of the
        page before; `brief` leaves out the options, prompts and ends of long texts."""
        place = None if before is None else await service.runs.place(run_id(before))
        listing = Listing(limit, tree, search.strip(), place)
        listed, more = await unless_gone(
            request.receive, service.runs.newest(listing, client_of(request), brief)
        )
        return await service.pools.rendering.run(lambda: JSON(run_list(service, listed, more, brief)))

    @routes.post("/runs", response_model=Runs, status_code=201)
    async def start(request: Request, body: StartBody) -> Response:
        tree = None if body.tree is None else await service.runs.tree(body.tree)
        requests = await service.threads.prepare(
            request, body, requests_of, service, body, body.strategies, body.pause_after
        )
        names = [strategy.name for strategy in body.strategies or ()]
        states = service.control.start(requests, tree, names=names, limit=body.pause_after)
        return started(states)

    @routes.get("/runs/{id}", response_model=WholeRun)
    async def run(
        id: Id,
        alternatives: Annotated[int, Query(ge=0, le=64)] = 64,
        first: Annotated[int, Query(ge=0, alias="from")] = 0,
    ) -> Response:
        """A run with all that is known of it. `from` leaves out the tokens before this one."""
        state = await service.runs.get(id)
        return await service.pools.rendering.run(lambda: JSON(whole_run(service, state, alternatives, first)))

    @routes.delete("/runs/{id}", status_code=204, response_class=Response)
    async def remove(id: Id) -> Response:
        await service.control.remove(id)
        return Response(status_code=204)

    @routes.post("/runs/{id}/fork", response_model=Runs, status_code=201)
    async def fork(id: Id, request: Request, body: ForkBody) -> Response:
        state = await service.runs.get(id)
        return started(await _fork(service, request, state, body, token=body.token))

    @routes.post("/runs/{id}/edit", response_model=Runs, status_code=201)
    async def edit(id: Id, request: Request, body: TextForkBody) -> Response:
        state = await service.runs.get(id)
        return started(await _fork(service, request, state, body, text=body.text))

    @routes.post("/runs/{id}/step", response_model=Summary)
    async def step(id: Id, request: Request, body: StepBody) -> Response:
        state = await service.runs.get(id)
        check_paused(state)
        rest = await service.threads.prepare(request, body, service.control.prepare_rest, state.run)
        service.control.resume(state, rest, body.tokens)
        return JSON(summary(service, state))

    @routes.post("/runs/{id}/stop", response_model=Summary)
    async def stop(id: Id) -> Response:
        state = await service.runs.get(id)
        service.control.cancel([state])
        async for _ in state.tree.follow(len(state.tree.log), lambda: state.request is None):
            pass
        return JSON(summary(service, state))

    return routes


def requests_of(
    service: Service,
    body: PromptBody,
    strategies: Sequence[Strategy] | None = None,
    pause_after: int | None = None,
) -> list[EngineRequest]:
    """Returns the engine requests of a body: one, or one for each strategy."""
    forms = [name for name in ("prompt", "token_ids", "messages") if getattr(body, name) is not None]
    if len(forms) != 1:
        problem = f"{' and '.join(forms)} are given" if forms else "none of them is given"
        raise invalid("prompt", f"one of prompt, token_ids and messages is expected; {problem}")
    prompt: Prompt
    messages = None if body.messages is None else as_recorded(body.messages)
    if body.messages is not None:
        prompt = encode_messages(service, body.messages)
    else:
        prompt = body.prompt if body.prompt is not None else body.token_ids or []
    requests: list[EngineRequest] = []
    each_way: Sequence[Strategy | None] = strategies or [None]
    for strategy in each_way:
        options = _options(body.sampling) | ({} if strategy is None else _options(strategy.sampling))
        sampling = make_sampling(options, service.settings, defaults=service.llm.default_sampling)
        diffusion = body.diffusion if strategy is None or strategy.diffusion is None else strategy.diffusion
        if pause_after is not None and (sampling.beam_width > 1 or diffusion is not None):
            what = "a beam search" if diffusion is None else "a text that is written by diffusion"
            raise invalid("pause_after", f"pause_after is given; {what} cannot pause")
        request = service.prepare(prompt, sampling, messages=messages)
        requests.append(request if diffusion is None else diffused(service, request, diffusion))
    most = service.settings.most_choices
    if sum(len(request.runs) for request in requests) > most:
        raise invalid("strategies", f"strategies ask for more than {most} runs")
    return requests


def _options(sampling: Body | None) -> dict[str, Any]:
    return {} if sampling is None else options_of(sampling)


async def _fork(
    service: Service, request: Request, state: RunState, body: ForkBody | TextForkBody, **change: Any
) -> list[RunState]:
    run = state.run
    await service.runs.count_forks(state)

    def prepare() -> EngineRequest:
        if isinstance(body, TextForkBody):
            service.check_text(body.text, "text")
        # The options of a run that was read from a file are held to the server's limits like any others.
        before = {**run.options_at(body.at).sampling.to_dict(), "n": 1, "beam_width": 1}
        sampling = make_sampling(merge_options(before, _options(body.sampling)), service.settings)
        forked = service.llm.prepare_fork(run, body.at, sampling=sampling, **change)
        forked.compiled  # noqa: B018  (raises what is wrong with the options)
        service.check_length(len(run.prompt_ids) + body.at + len(forked.forced), "at")
        return forked

    forked = await service.threads.prepare(request, body, prepare)
    return service.control.start([forked], state.tree, limit=body.pause_after)
