"""`POST /v1/responses`: OpenAI's newer endpoint, for text."""

from __future__ import annotations

import time
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, model_validator
from starlette.responses import Response

from glassloop.server.errors import ERRORS, APIError, invalid, unsupported
from glassloop.server.fields import (
    MOST_MESSAGES,
    MOST_PARTS,
    MOST_TOOLS,
    Name,
    Whole,
    check_type,
    many,
    text_or,
)
from glassloop.server.openai.conversation import Message, TextPart, as_recorded, encode_messages
from glassloop.server.openai.generation import (
    Generation,
    add_format,
    add_top_logprobs,
    finish_reason,
    respond,
    token_logprob,
)
from glassloop.server.operation.bodies import BodyRoute
from glassloop.server.options import Body, SamplingOptions, make_sampling, options_of
from glassloop.server.service import Service
from glassloop.server.streaming import STREAMED, event
from glassloop.trace.run import Run
from glassloop.trace.token import Token

_LOGPROBS = "message.output_text.logprobs"


class InputMessage(Body):
    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: text_or(many(TextPart, MOST_PARTS))  # type: ignore[valid-type]
    # Of an answer that is sent back.
    id: str | None = None
    status: Literal["completed", "incomplete", "in_progress"] | None = None
    phase: Name | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_message(cls, value: Any) -> Any:
        return check_type(
            value, ("message",), 'only messages are read; send {"role": "user", "content": "…"}'
        )


class TextFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(Body):
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ResponseStreamOptions(Body):
    include_obfuscation: Literal[False] | None = None


class ResponsesBody(SamplingOptions):  # type: ignore[misc, valid-type]
    """OpenAI's parameters, and the fields of Sampling, with the exception of `n`, `logprobs` and
    `max_tokens`, which have other names here or no place."""

    input: text_or(many(InputMessage, MOST_MESSAGES))  # type: ignore[valid-type]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: Whole | None = Field(None, ge=1)
    text: TextOptions | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    include: many(Literal["message.output_text.logprobs"], 16) | None = None  # type: ignore[valid-type]
    top_logprobs: int | None = Field(None, ge=0, le=20)
    metadata: dict[str, str] | None = None
    n: Literal[1] | None = None
    logprobs: None = None
    max_tokens: None = None
    # Accepted because they ask for nothing that changes an answer.
    background: Literal[False] | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: bool | None = None
    tool_choice: Literal["auto", "none"] | None = None
    tools: many(Any, MOST_TOOLS) | None = None  # type: ignore[valid-type]
    truncation: Literal["disabled"] | None = None
    user: str | None = None


class ResponseAnswer(BaseModel):
    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete", "in_progress", "failed"]
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    previous_response_id: str | None
    temperature: float
    top_p: float
    text: dict[str, Any]
    tool_choice: str
    tools: list[Any]
    truncation: str
    metadata: dict[str, str]
    usage: dict[str, Any] | None


def router(service: Service) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, tags=["OpenAI"], responses=ERRORS)

    @routes.post("/v1/responses", response_model=ResponseAnswer, operation_id="responses", responses=STREAMED)
    async def responses(request: Request, body: ResponsesBody) -> Response:
        return await respond(service, request, body, _Response)

    return routes


class _Response(Generation):
    def __init__(self, service: Service, body: ResponsesBody) -> None:
        if body.given.get("prompt_logprobs"):
            raise unsupported(
                "prompt_logprobs", "this endpoint has no place for it; use /v1/chat/completions"
            )
        if body.tools:
            raise unsupported("tools", "this endpoint has none; functions go to /v1/chat/completions")
        self._body = body
        self._wants_logprobs = _LOGPROBS in (body.include or ())
        self._format = body.text.format if body.text is not None else None
        messages = _messages(service, body)
        ids = encode_messages(
            service,
            messages,
            field="input",
            note="" if body.instructions is None else ", instructions included",
        )
        options = options_of(body)
        options["max_tokens"] = body.max_output_tokens or max(1, service.llm.config.context - len(ids))
        add_top_logprobs(options, body.top_logprobs, self._wants_logprobs, f"include: [{_LOGPROBS}]")
        if self._format is not None:
            add_format(options, self._format.type, self._format.schema_, "text.format.schema")
        self._sampling = make_sampling(options, service.settings, defaults=service.llm.default_sampling)
        super().__init__(service, [service.prepare(ids, self._sampling, messages=as_recorded(messages))])
        self._run_id = self.runs[0].id
        self._created = int(time.time())
        self._sequence_number = -1
        self._place = {"item_id": f"msg_{self._run_id}", "output_index": 0, "content_index": 0}

    def answer(self, runs: list[Run]) -> dict[str, Any]:
        return self._response(runs[0])

    # ── as it comes ────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, runs: list[Run]) -> bytes:
        empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return (
            self._event("response.created", response=self._response(None))
            + self._event("response.in_progress", response=self._response(None))
            + self._event("response.output_item.added", output_index=0, item=self._message(None))
            + self._event("response.content_part.added", part=empty, **self._place)
        )

    def token(self, index: int, run: Run, token: Token) -> bytes:
        logprobs = self._logprobs([token])
        return self._delta(token.text, logprobs) if token.text or logprobs else b""

    def end(self, index: int, run: Run) -> bytes:
        return self._delta(run.tail, []) if run.tail else b""

    async def finish(self) -> bytes:
        return await self.service.render(self.runs, self._finish)

    def _finish(self) -> bytes:
        run = self.runs[0]
        response, logprobs = self._response(run), self._logprobs(run.tokens)
        return (
            self._event("response.output_text.done", text=run.text, logprobs=logprobs, **self._place)
            + self._event("response.content_part.done", part=self._part(run), **self._place)
            + self._event("response.output_item.done", output_index=0, item=self._message(run))
            + self._event(f"response.{response['status']}", response=response)
        )

    def failed(self, error: APIError) -> bytes:
        detail = {"code": error.code or "server_error", "message": error.message}
        response = {**self._response(None), "status": "failed", "error": detail}
        return self._event("response.failed", response=response)

    def _delta(self, text: str, logprobs: list[dict[str, Any]]) -> bytes:
        return self._event("response.output_text.delta", delta=text, logprobs=logprobs, **self._place)

    def _event(self, kind: str, **details: Any) -> bytes:
        self._sequence_number += 1
        return event(kind, {"type": kind, "sequence_number": self._sequence_number, **details})

    # ── shapes ─────────────────────────────────────────────────────────────────────────────────────────────

    def _response(self, run: Run | None) -> dict[str, Any]:
        """Returns the response with a run that has ended, or with None as it is at the beginning."""
        form = self._format
        return {
            "id": f"resp_{self._run_id}",
            "object": "response",
            "created_at": self._created,
            "status": _status(run),
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if _status(run) == "incomplete" else None,
            "instructions": self._body.instructions,
            "max_output_tokens": self._body.max_output_tokens,
            "model": self.service.name,
            "output": [] if run is None else [self._message(run)],
            "parallel_tool_calls": bool(self._body.parallel_tool_calls),
            "previous_response_id": None,
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "text": {
                "format": {"type": "text"}
                if form is None
                else form.model_dump(by_alias=True, exclude_none=True)
            },
            "tool_choice": self._body.tool_choice or "auto",
            "tools": [],
            "truncation": "disabled",
            "metadata": self._body.metadata or {},
            "usage": None if run is None else _usage(run),
        }

    def _message(self, run: Run | None) -> dict[str, Any]:
        return {
            "id": f"msg_{self._run_id}",
            "type": "message",
            "role": "assistant",
            "status": _status(run),
            "content": [] if run is None else [self._part(run)],
        }

    def _part(self, run: Run) -> dict[str, Any]:
        logprobs = self._logprobs(run.tokens)
        return {"type": "output_text", "text": run.text, "annotations": [], "logprobs": logprobs}

    def _logprobs(self, tokens: list[Token]) -> list[dict[str, Any]]:
        if not self._wants_logprobs:
            return []
        return [token_logprob(self.service, token, self._body.top_logprobs or 0) for token in tokens]


def _messages(service: Service, body: ResponsesBody) -> list[Message]:
    """Returns the input as a conversation, which begins with the instructions."""
    messages = (
        [Message(role="user", content=body.input)]
        if isinstance(body.input, str)
        else [Message(role=each.role, content=each.content) for each in body.input]
    )
    if body.instructions is not None:
        service.check_text(body.instructions, "instructions")
        messages.insert(0, Message(role="system", content=body.instructions))
    if not messages:
        raise invalid("input", "input is empty; at least one message is expected")
    return messages


def _status(run: Run | None) -> str:
    if run is None:
        return "in_progress"
    return "incomplete" if finish_reason(run) == "length" else "completed"


def _usage(run: Run) -> dict[str, Any]:
    used = run.usage
    return {
        "input_tokens": used.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": used.cached_tokens,
            "cache_write_tokens": used.prompt_tokens - used.cached_tokens,
        },
        "output_tokens": used.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": used.total_tokens,
    }
