"""`POST /v1/responses`: OpenAI's newer endpoint, for text."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from glassloop.decode.sampling import Sampling
from glassloop.engine.request import Request as EngineRequest
from glassloop.server.errors import APIError, as_api_error
from glassloop.server.fields import MOST_MESSAGES, MOST_PARTS, Whole, many, text_or, texts_in
from glassloop.server.openai import answers
from glassloop.server.openai.conversation import Message, TextPart, encode
from glassloop.server.operation.bodies import BodyRoute
from glassloop.server.options import Body, SamplingOptions, make_sampling, options_of
from glassloop.server.runs.state import Live
from glassloop.server.service import Service
from glassloop.server.streaming import BEAT, JSON, STILL_HERE, EventStream, event, unless_gone
from glassloop.trace.run import Run

_LOGPROBS = "message.output_text.logprobs"


class InputMessage(Body):
    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: text_or(many(TextPart, MOST_PARTS))  # type: ignore[valid-type]
    id: str | None = None
    status: Literal["completed", "incomplete", "in_progress"] | None = None


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
    tools: many(Any, 0) | None = None  # type: ignore[valid-type]
    truncation: Literal["disabled"] | None = None
    user: str | None = None


class ResponseAnswer(BaseModel):
    id: str
    object: Literal["response"]
    created_at: float
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
    routes = APIRouter(route_class=BodyRoute, tags=["OpenAI"], responses=answers.ERRORS)

    @routes.post(
        "/v1/responses",
        response_model=ResponseAnswer,
        operation_id="responses",
        responses={200: {"content": {"text/event-stream": {}}}},
    )
    async def responses(request: Request, body: ResponsesBody) -> Response:
        service.check_model(body.model)
        job = await service.prepared(request, body, _Job, service, body)
        return job.stream() if body.stream else await unless_gone(request, job.whole())

    return routes


class _Job:
    def __init__(self, service: Service, body: ResponsesBody) -> None:
        self._service = service
        self._body = body
        self._request = self._prepare()
        run = self._request.runs[0]
        self._id, self._message_id = f"resp_{run.id}", f"msg_{run.id}"
        self._created = time.time()
        self._wants_logprobs = _LOGPROBS in (body.include or ())

    def _prepare(self) -> EngineRequest:
        service, body = self._service, self._body
        if body.top_logprobs is not None and _LOGPROBS not in (body.include or ()):
            raise APIError(400, f"top_logprobs is given without include: [{_LOGPROBS}]", param="top_logprobs")
        messages = (
            [Message(role="user", content=body.input)]
            if isinstance(body.input, str)
            else [Message(role=each.role, content=each.content) for each in body.input]
        )
        if body.instructions is not None:
            messages.insert(0, Message(role="system", content=body.instructions))
        if not messages:
            raise APIError(400, "input is empty; at least one message is expected", param="input")
        service.check_texts([body.instructions or ""], "instructions", service.longest_text)
        service.check_texts(texts_in(messages), "input", service.longest_text)
        ids = encode(service.llm.tokenizer, messages)
        service.check_length(
            len(ids), "input", "" if body.instructions is None else ", instructions included"
        )
        options = options_of(body)
        options["max_tokens"] = body.max_output_tokens or max(1, service.llm.config.context - len(ids))
        if body.top_logprobs is not None:
            options["logprobs"] = max(body.top_logprobs, Sampling.logprobs)
        self._format = body.text.format if body.text is not None else None
        if self._format is not None and self._format.type == "json_object":
            options["json_schema"] = {"type": "object"}
        elif self._format is not None and self._format.type == "json_schema":
            if self._format.schema_ is None:
                raise APIError(400, "text.format.schema is missing", param="text.format.schema")
            options["json_schema"] = self._format.schema_
        sampling = make_sampling(options, service.settings)
        return service.llm.prepare(ids, sampling, compiled=service.compile(sampling))

    async def whole(self) -> Response:
        found = await self._service.finish([self._request], chat=True)
        run, headers = found[0].run, answers.headers(found[:1])
        return await self._service.shown([run], lambda: JSON(self._answer(run), headers=headers))

    def stream(self) -> Response:
        lives = self._service.enter([self._request], chat=True)
        return EventStream(self._events(lives), answers.headers(lives), lambda: self._service.leave(lives))

    async def _events(self, lives: list[Live]) -> AsyncGenerator[bytes, None]:
        service, live, run = self._service, lives[0], lives[0].run
        number = -1

        def told(kind: str, **details: Any) -> bytes:
            nonlocal number
            number += 1
            return event(kind, {"type": kind, "sequence_number": number, **details})

        at = {"item_id": self._message_id, "output_index": 0, "content_index": 0}
        empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        try:
            yield told("response.created", response=self._answer(None))
            yield told("response.in_progress", response=self._answer(None))
            yield told("response.output_item.added", output_index=0, item=self._message(None))
            yield told("response.content_part.added", part=empty, **at)
            async for each in service.events(lives, BEAT):
                if each is None:
                    yield STILL_HERE
                elif each.token is not None:
                    logprobs = self._logprobs([each.token])
                    if each.token.text or logprobs:
                        delta = each.token.text
                        yield told("response.output_text.delta", delta=delta, logprobs=logprobs, **at)
            service.raise_if_failed(live)
            if run.tail:
                yield told("response.output_text.delta", delta=run.tail, logprobs=[], **at)

            def last() -> list[bytes]:
                answer = self._answer(run)
                return [
                    told(
                        "response.output_text.done", text=run.text, logprobs=self._logprobs(run.tokens), **at
                    ),
                    told("response.content_part.done", part=self._part(run), **at),
                    told("response.output_item.done", output_index=0, item=self._message(run)),
                    told(f"response.{answer['status']}", response=answer),
                ]

            for chunk in await service.shown([run], last):
                yield chunk
        except Exception as error:
            detail = as_api_error(error).body["error"]
            failed = {**self._answer(None), "status": "failed"}
            failed["error"] = {"code": detail["code"] or "server_error", "message": detail["message"]}
            yield told("response.failed", response=failed)

    # ── shapes ─────────────────────────────────────────────────────────────────────────────────────────────

    def _answer(self, run: Run | None) -> dict[str, Any]:
        """The response as it is with this run at its end; None: it has just begun."""
        sampling = self._request.sampling
        cut = run is not None and answers.finish_reason(run) == "length"
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": "in_progress" if run is None else "incomplete" if cut else "completed",
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": self._body.instructions,
            "max_output_tokens": self._body.max_output_tokens,
            "model": self._service.name,
            "output": [] if run is None else [self._message(run)],
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "text": {
                "format": {"type": "text"}
                if self._format is None
                else self._format.model_dump(by_alias=True, exclude_none=True)
            },
            "tool_choice": "auto",
            "tools": [],
            "truncation": "disabled",
            "metadata": self._body.metadata or {},
            "usage": None if run is None else self._usage(run),
        }

    def _message(self, run: Run | None) -> dict[str, Any]:
        cut = run is not None and answers.finish_reason(run) == "length"
        return {
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
            "status": "in_progress" if run is None else "incomplete" if cut else "completed",
            "content": [] if run is None else [self._part(run)],
        }

    def _part(self, run: Run) -> dict[str, Any]:
        return {
            "type": "output_text",
            "text": run.text,
            "annotations": [],
            "logprobs": self._logprobs(run.tokens),
        }

    def _logprobs(self, tokens: list[Any]) -> list[dict[str, Any]]:
        if not self._wants_logprobs:
            return []
        return [answers.logprob(self._service, token, self._body.top_logprobs or 0) for token in tokens]

    def _usage(self, run: Run) -> dict[str, Any]:
        used = run.usage
        return {
            "input_tokens": used.prompt_tokens,
            "input_tokens_details": {"cached_tokens": used.cached_tokens},
            "output_tokens": used.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": used.total_tokens,
        }
