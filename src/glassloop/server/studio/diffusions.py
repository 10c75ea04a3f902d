"""`/api/diffusions` and `/api/runs/{id}/passes`: texts that are written by filling masks, pass after pass.
docs/diffusion.md describes what is computed, docs/server.md every shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, cast

from fastapi import APIRouter, Query, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from glassloop.engine.request import Request as EngineRequest
from glassloop.record.passes import PassRecord
from glassloop.record.run import Run
from glassloop.server.diffusion_options import DiffusionOptions
from glassloop.server.http.bodies import BodyRoute
from glassloop.server.http.errors import ERRORS
from glassloop.server.http.streaming import JSON, STREAMED, EventStream, api_answer, unless_gone
from glassloop.server.openai.generation import run_headers
from glassloop.server.runs.state import RunState
from glassloop.server.service import Service
from glassloop.server.studio.run_events import event_chunks
from glassloop.server.studio.runs import Id, PromptBody, requests_of
from glassloop.server.studio.summaries import Summary, summary
from glassloop.server.studio.whole_runs import frames_of

_MOST_FRAMES = 1000  # in one answer


class DiffusionBody(PromptBody):
    stream: bool | None = None


class FilledShape(TypedDict):
    place: int
    id: int
    text: str
    confidence: float
    entropy: float
    raw_logprob: float
    logprob: float


class TakenBackShape(TypedDict):
    place: int
    id: int
    text: str
    reason: str


# `pass` is a word of Python, so the shapes that have it as a name are made by a call.
PassShape = TypedDict(
    "PassShape",
    {
        "pass": int,
        "first": int,
        "width": int,
        "filled": list[FilledShape],
        "taken_back": list[TakenBackShape],
    },
)


@api_answer
class DiffusionAnswer(TypedDict):
    runs: list[Summary]
    passes: dict[str, list[PassShape]]  # by the id of the run


CellShape = TypedDict(
    "CellShape",
    {
        "text": str | None,
        "id": int | None,
        "changed": bool,
        "confidence": float | None,
        "entropy": float | None,
        "raw_logprob": float | None,
        "logprob": float | None,
        "pass": int | None,
        "taken_back": str | None,
        "reason": str | None,
    },
)
PassFrameShape = TypedDict("PassFrameShape", {"pass": int, "first": int, "cells": list[CellShape]})


@api_answer
class Passes(TypedDict):
    run: str
    diffusion: dict[str, Any] | None
    passes: int
    frames: Iterable[PassFrameShape]  # made one by one, while they are encoded
    more: bool


def router(service: Service) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, prefix="/api", tags=["diffusion"], responses=ERRORS)

    @routes.post("/diffusions", response_model=DiffusionAnswer, responses=STREAMED)
    async def write(request: Request, body: DiffusionBody) -> Response:
        """Write a text by diffusion. It ends if the client disconnects before."""
        body.diffusion = body.diffusion or DiffusionOptions.model_validate({})
        requests = await service.threads.prepare(request, body, requests_of, service, body)
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
    states = service.control.start_for_client(requests)
    try:
        async for _ in service.control.events(states):
            pass
        for state in states:
            service.control.raise_if_failed(state)
        return await service.pools.rendering.run(lambda: JSON(_answer(service, states)))
    finally:
        service.control.release(states)


def _stream(service: Service, requests: list[EngineRequest]) -> Response:
    states = service.control.start_for_client(requests)

    def over() -> bool:
        return all(state.request is None for state in states)

    headers = run_headers([state.run for state in states])
    chunks = event_chunks(service, states[0].tree, 0, over)
    return EventStream(chunks, headers, lambda: service.control.release(states))


def _answer(service: Service, states: list[RunState]) -> DiffusionAnswer:
    piece = service.llm.piece
    return DiffusionAnswer(
        runs=[summary(service, state) for state in states],
        passes={state.run.id: [_pass(record, piece) for record in state.run.passes] for state in states},
    )


def _pass(record: PassRecord, piece: Callable[[int], str]) -> PassShape:
    """Returns what a pass has filled, and what had been taken back before it."""
    filled = [
        FilledShape(
            place=each.at,
            id=each.id,
            text=piece(each.id),
            confidence=each.confidence,
            entropy=each.entropy,
            raw_logprob=each.raw_logprob,
            logprob=each.logprob,
        )
        for each in record.filled
    ]
    taken_back = [
        TakenBackShape(place=each.at, id=each.id, text=piece(each.id), reason=each.why)
        for each in record.unfilled
    ]
    return {
        "pass": record.number,
        "first": record.first,
        "width": record.width,
        "filled": filled,
        "taken_back": taken_back,
    }


def _passes(service: Service, run: Run, after: int, limit: int) -> Passes:
    count, maker = len(run.passes), frames_of(service, run)
    last = min(count, after + 1 + limit)
    return Passes(
        run=run.id,
        diffusion=run.diffusion,
        passes=count,
        frames=(cast(PassFrameShape, maker.at(each).to_dict()) for each in range(after + 1, last)),
        more=last < count,
    )
