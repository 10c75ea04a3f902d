"""`/api/diffusions` and `/api/runs/{id}/passes`: texts that are written by filling masks, pass after pass.
docs/diffusion.md describes what is computed, docs/server.md every shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from glassloop.engine.request import Request as EngineRequest
from glassloop.record.run import Run
from glassloop.server.diffusion_options import DiffusionOptions
from glassloop.server.http.bodies import BodyRoute
from glassloop.server.http.errors import ERRORS
from glassloop.server.http.streaming import JSON, STREAMED, EventStream, unless_gone
from glassloop.server.openai.generation import run_headers
from glassloop.server.runs.state import RunState
from glassloop.server.service import Service
from glassloop.server.studio.runs import Id, PromptBody, event_chunks, requests_of
from glassloop.server.studio.shapes import Summary, frames_of, summary

_MOST_FRAMES = 1000  # in one answer


class DiffusionBody(PromptBody):
    stream: bool | None = None


class FilledShape(BaseModel):
    place: int
    id: int
    text: str
    confidence: float
    entropy: float
    raw_logprob: float
    logprob: float


class TakenBackShape(BaseModel):
    place: int
    id: int
    text: str
    reason: str


class PassShape(BaseModel):
    pass_: int = Field(alias="pass")
    first: int
    width: int
    filled: list[FilledShape]
    taken_back: list[TakenBackShape]


class DiffusionAnswer(BaseModel):
    runs: list[Summary]
    passes: dict[str, list[PassShape]]  # by the id of the run


class CellShape(BaseModel):
    text: str | None
    id: int | None
    changed: bool
    confidence: float | None
    entropy: float | None
    raw_logprob: float | None
    logprob: float | None
    pass_: int | None = Field(alias="pass")
    taken_back: str | None
    reason: str | None


class PassFrameShape(BaseModel):
    pass_: int = Field(alias="pass")
    first: int
    cells: list[CellShape]


class Passes(BaseModel):
    run: str
    diffusion: dict[str, Any] | None
    passes: int
    frames: list[PassFrameShape]
    more: bool


def router(service: Service) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, prefix="/api", tags=["diffusion"], responses=ERRORS)

    @routes.post("/diffusions", response_model=DiffusionAnswer, responses=STREAMED)
    async def write(request: Request, body: DiffusionBody) -> Response:
        """Write a text by diffusion. It ends if the client disconnects before."""
        body.diffusion = body.diffusion or DiffusionOptions.model_validate({})
        requests = await service.prepare_on_thread(request, body, requests_of, service, body)
        if body.stream:
            return _stream(service, requests)
        return await unless_gone(request.receive, _whole(service, requests))

    @routes.get("/runs/{id}/passes", response_model=Passes)
    async def passes(
        id: Id,
        after: Annotated[int, Query(ge=-1, le=1 << 31)] = -1,
        limit: Annotated[int, Query(ge=1, le=_MOST_FRAMES)] = 256,
    ) -> Response:
        """Show how a text was written by diffusion: the block that each pass worked on, after the pass.
        `after` is the number of the last pass that the client has. Any other run has no passes."""
        run = (await service.runs.get(id)).run
        return await service.pools.rendering.run(lambda: JSON(_passes(service, run, after, limit)))

    return routes


async def _whole(service: Service, requests: list[EngineRequest]) -> Response:
    states = service.start_for_client(requests)
    try:
        async for _ in service.events(states):
            pass
        for state in states:
            service.raise_if_failed(state)
        return await service.pools.rendering.run(lambda: JSON(_answer(service, states)))
    finally:
        service.release(states)


def _stream(service: Service, requests: list[EngineRequest]) -> Response:
    states = service.start_for_client(requests)

    def over() -> bool:
        return all(state.request is None for state in states)

    headers = run_headers([state.run for state in states])
    chunks = event_chunks(service, states[0].tree, 0, over)
    return EventStream(chunks, headers, lambda: service.release(states))


def _answer(service: Service, states: list[RunState]) -> dict[str, Any]:
    return {
        "runs": [summary(service, state) for state in states],
        "passes": {state.run.id: list(_changes(service, state.run)) for state in states},
    }


def _changes(service: Service, run: Run) -> Iterator[dict[str, Any]]:
    """Yields what each pass has filled, and what had been taken back before it."""
    piece = service.llm.piece
    for record in run.passes:
        filled = [
            {"place": each.at, "id": each.id, "text": piece(each.id)}
            | {name: getattr(each, name) for name in ("confidence", "entropy", "raw_logprob", "logprob")}
            for each in record.filled
        ]
        taken_back = [
            {"place": each.at, "id": each.id, "text": piece(each.id), "reason": each.why}
            for each in record.unfilled
        ]
        yield {
            "pass": record.number,
            "first": record.first,
            "width": record.width,
            "filled": filled,
            "taken_back": taken_back,
        }


def _passes(service: Service, run: Run, after: int, limit: int) -> dict[str, Any]:
    """Returns frames of a run. They are made one by one, while they are encoded."""
    count, maker = len(run.passes), frames_of(service, run)
    last = min(count, after + 1 + limit)
    return {
        "run": run.id,
        "diffusion": run.diffusion,
        "passes": count,
        "frames": (maker.at(number).to_dict() for number in range(after + 1, last)),
        "more": last < count,
    }
