"""`/v1/responses/{id}`: a response that was given before, from the record of its run, as a whole or as its
events; its input, its removal, and the end of one that is computed in the background."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from glassloop.record.messages import text_of
from glassloop.record.run import Run
from glassloop.record.run_name import RESPONSE
from glassloop.server.http.clients import client_of
from glassloop.server.http.errors import ERRORS, APIError, as_api_error, too_many
from glassloop.server.http.streaming import JSON, KEEP_ALIVE, STILL_HERE, STREAMED, EventStream, api_answer
from glassloop.server.openai.generation import run_headers
from glassloop.server.openai.response_body import LOGPROBS, ResponsesBody, body_of
from glassloop.server.openai.response_shapes import ResponseAnswer
from glassloop.server.openai.response_state import input_items, page_of
from glassloop.server.openai.responses import ModelResponse, turn_of
from glassloop.server.runs.notes import note_of
from glassloop.server.runs.state import RunState
from glassloop.server.sampling_options import without_spaces
from glassloop.server.service import Service
from glassloop.server.studio.runs import Id

_AT_ONCE = 16  # tokens whose events are sent without a break
_PATIENCE = 10.0  # seconds that a cancelled run has to end
Limit = Annotated[int, Query(ge=1, le=100)]
After = Annotated[str | None, Query(max_length=100)]


@api_answer
class DeletedResponse(TypedDict):
    id: str
    object: Literal["response"]
    deleted: bool


@api_answer
class ItemList(TypedDict):
    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["OpenAI"], responses=ERRORS)

    @routes.get(
        "/v1/responses/{id}",
        response_model=ResponseAnswer,
        operation_id="retrieve_response",
        responses=STREAMED,
    )
    async def retrieve(
        id: Id,
        request: Request,
        stream: bool = False,
        starting_after: Annotated[int, Query(ge=-1, le=1 << 31)] = -1,
    ) -> Response:
        """A response that was given before, from the record of its run; also one of another endpoint."""
        state = await service.runs.get(id)
        query = request.query_params
        with_logprobs = LOGPROBS in [*query.getlist("include"), *query.getlist("include[]")]
        body = await _body(service, state.run, with_logprobs)
        response = ModelResponse(
            service, body, turn_of(service, body, state.run), state.run, (), starting_after
        )
        if stream:
            return _stream(service, request, response, state)
        return await service.threads.render([state.run], lambda: _answer(response, state))

    @routes.get("/v1/responses/{id}/input_items", response_model=ItemList, operation_id="response_input")
    async def input_list(
        id: Id, limit: Limit = 20, order: Literal["asc", "desc"] = "desc", after: After = None
    ) -> Response:
        """The items of a response's input, with all that it went on from."""
        state = await service.runs.get(id)
        return JSON(page_of(await input_items(service, state.run), after, limit, order == "desc"))

    @routes.post("/v1/responses/{id}/cancel", response_model=ResponseAnswer, operation_id="cancel_response")
    async def cancel(id: Id) -> Response:
        """Ends a response that is computed; one that has ended stays as it is."""
        state = await service.runs.get(id)
        if state.is_elsewhere:
            raise APIError(409, "the response is computed by another server", code="still_running")
        service.control.cancel([state])
        async with asyncio.timeout(_PATIENCE):
            async for _ in state.tree.follow(0, lambda: state.latest.request is None):
                pass
        body = await _body(service, state.run, False)
        response = ModelResponse(service, body, turn_of(service, body, state.run), state.run)
        return await service.threads.render([state.run], lambda: _answer(response, state))

    @routes.delete("/v1/responses/{id}", response_model=DeletedResponse, operation_id="delete_response")
    async def delete(id: Id) -> Response:
        """Removes the run of a response, as DELETE /api/runs/{id} does."""
        await service.control.remove(id)
        return JSON(DeletedResponse(id=f"{RESPONSE}{id}", object="response", deleted=True))

    return routes


def _answer(response: ModelResponse, state: RunState) -> Response:
    ended = None if state.request is not None or state.is_elsewhere else state.run
    shape = response.shape(ended)
    if state.status == "waiting":
        shape["status"] = "queued"
    return JSON(shape, headers=run_headers([state.run]))


async def _body(service: Service, run: Run, with_logprobs: bool) -> ResponsesBody:
    """Returns the request of a response, as far as it is kept; that of a run of another endpoint is made from
    its record."""
    note = await service.notes.get(note_of(run.id))
    said = {} if note is None else dict(note.data)
    if note is None:
        first = run.messages[0] if run.messages else None
        if first is not None and first.get("role") == "system":
            said["instructions"] = text_of(first)
        said["max_output_tokens"] = run.sampling.max_tokens
        schema = without_spaces(run.sampling.json_schema)
        if schema is not None:
            said["text"] = {"format": _format(schema)}
    if with_logprobs:
        said |= {"include": [LOGPROBS], "top_logprobs": min(20, run.sampling.logprobs)}
    return body_of(said)


def _format(schema: Mapping[str, Any] | bool) -> dict[str, Any]:
    if isinstance(schema, bool) or dict(schema) == {"type": "object"}:
        return {"type": "json_object"}
    return {"type": "json_schema", "name": "schema", "schema": dict(schema)}


def _stream(service: Service, request: Request, response: ModelResponse, state: RunState) -> Response:
    """Returns the events of a response, as they were sent when it was given, and those that still come."""
    if state.is_elsewhere:
        raise APIError(409, "the response is computed by another server; come again", code="still_running")
    client, places = client_of(request), service.followers
    if not places.take(client):
        raise too_many("too many streams of events are open", "too_many_followers")
    chunks = _events(response, state)
    return EventStream(chunks, run_headers([state.run]), lambda: places.give_back(client))


async def _events(response: ModelResponse, state: RunState) -> AsyncGenerator[bytes, None]:
    run, sent = state.run, 0

    def fresh(upto: int) -> bytes:
        nonlocal sent
        tokens, sent = run.tokens[sent:upto], upto
        return b"".join([response.token(0, run, token) for token in tokens])

    try:
        yield response.begin([run])
        async for _, event in state.tree.follow(0, lambda: state.request is None, KEEP_ALIVE):
            yield fresh(state.sent) if event is not None else STILL_HERE
        while sent < len(run.tokens):
            yield fresh(min(sent + _AT_ONCE, len(run.tokens)))
            await asyncio.sleep(0)
        yield response.end(0, run)
        yield await response.finish()
    except Exception as error:
        yield response.failed(as_api_error(error))
