"""`/api/runs/{id}/events` and `/api/trees/{id}/events`: following runs while they are computed, as streams of
server-sent events. docs/server.md has every event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from math import inf
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from glassloop.server.http.bodies import BodyRoute
from glassloop.server.http.clients import client_of
from glassloop.server.http.errors import ERRORS, too_many
from glassloop.server.http.streaming import KEEP_ALIVE, STILL_HERE, STREAMED, EventStream, event
from glassloop.server.runs.state import RunState, TreeState
from glassloop.server.service import Service
from glassloop.server.studio.runs import Id
from glassloop.server.studio.whole_runs import event_shape

_AT_ONCE = 16  # events of a log that are sent without a break
_QUIET = 600.0  # seconds after which the stream of a tree that is not computed ends


def router(service: Service) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, prefix="/api", tags=["runs"], responses=ERRORS)

    @routes.get("/runs/{id}/events", response_class=Response, responses=STREAMED)
    async def run_events(
        id: Id,
        request: Request,
        after: Annotated[int | None, Query(ge=0)] = None,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        state = await service.runs.get(id)

        def over() -> bool:
            return state.request is None

        return _event_stream(service, request, state.tree, _after(after, last_event_id), over, state)

    @routes.get("/trees/{id}/events", response_class=Response, responses=STREAMED)
    async def tree_events(
        id: Id,
        request: Request,
        after: Annotated[int | None, Query(ge=0)] = None,
        close: bool = False,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        tree = await service.runs.tree(id)

        def over() -> bool:
            return not tree.states or ((close or service.draining) and not tree.busy)

        return _event_stream(service, request, tree, _after(after, last_event_id), over)

    return routes


def _event_stream(
    service: Service,
    request: Request,
    tree: TreeState,
    after: int,
    over: Callable[[], bool],
    only: RunState | None = None,
) -> Response:
    """Returns the events of a tree, or of one of its runs, as a stream. It stays open for long, so the number
    of such streams is bounded, and each client has a share of them."""
    client, places = client_of(request), service.followers
    if not places.take(client):
        message = f"too many streams of events are open; at most {places.most} are expected, half of them"
        raise too_many(f"{message} for one client", "too_many_followers")
    chunks = event_chunks(service, tree, after, over, only, quiet=_QUIET)
    return EventStream(chunks, release=lambda: places.give_back(client))


async def event_chunks(
    service: Service,
    tree: TreeState,
    after: int,
    over: Callable[[], bool],
    only: RunState | None = None,
    quiet: float = inf,
) -> AsyncGenerator[bytes, None]:
    """Yields the events of a tree, or of one of its runs, as they are sent. They end when nothing of the tree
    has been computed for `quiet` seconds; a client that follows it further asks for what comes then."""
    left, at_once = quiet, 0
    async for number, each in tree.follow(after, over, KEEP_ALIVE):
        left = left - KEEP_ALIVE if each is None and not tree.busy else quiet
        if each is None:
            if left <= 0:
                return
            yield STILL_HERE
        elif only is None or each.state is only:
            yield event(each.kind, event_shape(service, number, each), number)
        at_once += 1
        if at_once % _AT_ONCE == 0:
            await asyncio.sleep(0)  # a client that reads quickly must not hold up others with a long log


def _after(after: int | None, last_event_id: str | None) -> int:
    """Returns the number of the last event that the client has. A browser that reconnects sends it in the
    header; the query is for clients that cannot set one."""
    if last_event_id is not None and last_event_id.isascii() and last_event_id.isdigit():
        return int(last_event_id[:18])
    return after or 0
