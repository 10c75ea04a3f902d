"""`GET` and `DELETE /v1/responses/{id}`: a response that was given before, from the record of its run.

The record has the conversation, the options and the text. What a request says beside these, such as tools and
metadata, is not kept: the answer has it empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from fastapi import APIRouter, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from glassloop.record.messages import text_of
from glassloop.record.run import Run
from glassloop.record.run_name import RESPONSE
from glassloop.server.http.errors import ERRORS, invalid
from glassloop.server.http.streaming import JSON, api_answer
from glassloop.server.openai.generation import run_headers, token_logprob
from glassloop.server.openai.responses import (
    LOGPROBS,
    ResponseAnswer,
    ResponseStatus,
    call_items,
    incomplete_details,
    message_item,
    reasoning_item,
    response_status,
    text_part,
    usage_shape,
)
from glassloop.server.openai.tool_calls import recorded_parts
from glassloop.server.runs.state import RunState
from glassloop.server.sampling_options import without_spaces
from glassloop.server.service import Service
from glassloop.server.studio.runs import Id


@api_answer
class DeletedResponse(TypedDict):
    id: str
    object: Literal["response"]
    deleted: bool


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["OpenAI"], responses=ERRORS)

    @routes.get("/v1/responses/{id}", response_model=ResponseAnswer, operation_id="retrieve_response")
    async def retrieve(id: Id, request: Request, stream: bool = False) -> Response:
        """A response that was given before, from the record of its run; also one of another endpoint."""
        if stream:
            message = "stream is true; a response that was given before is sent as a whole"
            raise invalid("stream", f"{message}. /api/runs/{id}/events has its tokens")
        state = await service.runs.get(id)
        query = request.query_params
        with_logprobs = LOGPROBS in [*query.getlist("include"), *query.getlist("include[]")]
        return await service.threads.render(
            [state.run],
            lambda: JSON(_response(service, state, with_logprobs), headers=run_headers([state.run])),
        )

    @routes.delete("/v1/responses/{id}", response_model=DeletedResponse, operation_id="delete_response")
    async def delete(id: Id) -> Response:
        """Removes the run of a response, as DELETE /api/runs/{id} does."""
        await service.control.remove(id)
        return JSON(DeletedResponse(id=f"{RESPONSE}{id}", object="response", deleted=True))

    return routes


def _response(service: Service, state: RunState, with_logprobs: bool) -> ResponseAnswer:
    run, sampling = state.run, state.run.sampling
    ended = None if state.request is not None or state.is_elsewhere else run
    status = _STATUS.get(run.finish_reason or "", response_status(ended))
    model = service.public_name(run.model)
    return ResponseAnswer(
        id=f"{RESPONSE}{run.id}",
        object="response",
        created_at=int(run.created),
        status=status,
        error={"code": "server_error", "message": run.stop_reason or ""} if status == "failed" else None,
        incomplete_details=incomplete_details(run) if status == "incomplete" else None,
        instructions=_instructions(run),
        max_output_tokens=sampling.max_tokens,
        model=model if sampling.adapter is None else f"{model}:{sampling.adapter}",
        output=[] if ended is None else _output(service, run, status, with_logprobs),
        parallel_tool_calls=True,
        previous_response_id=None,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        text={"format": _format(without_spaces(sampling.json_schema))},
        tool_choice="auto",
        tools=[],
        truncation="disabled",
        metadata={},
        usage=None if ended is None else usage_shape(run),
    )


_STATUS: dict[str, ResponseStatus] = {
    "cancelled": "cancelled",
    "error": "failed",
}  # by the reason of a run's end, where they differ


def _output(service: Service, run: Run, status: str, with_logprobs: bool) -> list[dict[str, Any]]:
    text, calls = recorded_parts(service.llm.tokenizer, run)
    most = run.sampling.logprobs
    logprobs = [token_logprob(service, token, most) for token in run.tokens] if with_logprobs else []
    items = call_items(calls, "completed" if status == "completed" else "incomplete")
    if text.strip() or not items:
        item_status = "completed" if status == "completed" else "incomplete"
        items.insert(0, message_item(run.id, item_status, [text_part(text, logprobs)]))
    if run.form is not None and run.thoughts:
        items.insert(0, reasoning_item(run.id, run.thoughts))
    return items


def _instructions(run: Run) -> str | None:
    """Returns the system message that a conversation begins with."""
    first = run.messages[0] if run.messages else None
    return text_of(first) if first is not None and first.get("role") == "system" else None


def _format(schema: Mapping[str, Any] | bool | None) -> dict[str, Any]:
    if schema is None:
        return {"type": "text"}
    if isinstance(schema, bool) or dict(schema) == {"type": "object"}:
        return {"type": "json_object"}
    return {"type": "json_schema", "name": "schema", "schema": dict(schema)}
