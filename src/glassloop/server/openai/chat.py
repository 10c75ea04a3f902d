"""`POST /v1/chat/completions`: the next turn of a conversation."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from glassloop.decode.sampling import Sampling
from glassloop.engine.request import Request as EngineRequest
from glassloop.server.errors import APIError, as_api_error, refused
from glassloop.server.fields import Whole, many, texts_in
from glassloop.server.openai import answers
from glassloop.server.openai.conversation import Messages, Tools, encode
from glassloop.server.operation.bodies import BodyRoute
from glassloop.server.options import Body, SamplingOptions, make_sampling, options_of
from glassloop.server.runs.state import Live
from glassloop.server.service import Service
from glassloop.server.streaming import BEAT, JSON, STILL_HERE, EventStream, data, unless_gone

Metadata = dict[str, str]


class StreamOptions(Body):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class JSONSchema(Body):
    name: str
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JSONSchema | None = None


class ChatBody(SamplingOptions):  # type: ignore[misc, valid-type]
    """OpenAI's parameters, and every field of Sampling."""

    messages: Messages
    model: str | None = None
    max_completion_tokens: Whole | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    tools: Tools | None = None
    tool_choice: Literal["auto", "none"] | None = None
    parallel_tool_calls: bool | None = None
    # Accepted because they ask for nothing that changes an answer.
    modalities: many(Literal["text"], 16) | None = None  # type: ignore[valid-type]
    service_tier: Literal["auto", "default"] | None = None
    verbosity: Literal["medium"] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    # Beyond OpenAI: the last message is the assistant's, and the model goes on with it.
    continue_final_message: bool | None = None


class Entry(BaseModel):
    token: str
    bytes: list[int] | None
    logprob: float


class TopEntry(Entry):
    top_logprobs: list[Entry]


class Logprobs(BaseModel):
    content: list[TopEntry]
    refusal: None


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    refusal: None


class Choice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | None


class ChatAnswer(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: answers.UsageAnswer
    system_fingerprint: str | None


def chat_options(body: ChatBody, context_left: int) -> dict[str, Any]:
    """As `Sampling` has them. Without a limit an answer may be as long as there is room for."""
    options = options_of(body)
    options.pop("logprobs", None)
    most = body.max_completion_tokens
    if most is not None and options.setdefault("max_tokens", most) != most:
        raise APIError(400, "max_tokens and max_completion_tokens differ", param="max_completion_tokens")
    options.setdefault("max_tokens", max(1, context_left))
    if body.top_logprobs is not None:
        if not body.logprobs:
            raise APIError(400, "top_logprobs is given without logprobs: true", param="top_logprobs")
        options["logprobs"] = max(body.top_logprobs, Sampling.logprobs)
    if body.stream_options is not None and not body.stream:
        raise APIError(400, "stream_options is given without stream: true", param="stream_options")
    add_format(options, body.response_format)
    return options


def add_format(options: dict[str, Any], format: ResponseFormat | None) -> None:
    if format is None or format.type == "text":
        return
    if format.type == "json_object":
        options["json_schema"] = {"type": "object"}
        return
    if format.json_schema is None or format.json_schema.schema_ is None:
        raise APIError(
            400, "response_format.json_schema.schema is missing", param="response_format.json_schema.schema"
        )
    options["json_schema"] = format.json_schema.schema_


def router(service: Service) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, tags=["OpenAI"], responses=answers.ERRORS)

    @routes.post(
        "/v1/chat/completions",
        response_model=ChatAnswer,
        operation_id="chat_completions",
        responses={200: {"content": {"text/event-stream": {}}}},
    )
    async def chat(request: Request, body: ChatBody) -> Response:
        service.check_model(body.model)
        engine_request = await service.prepared(request, body, _prepare, service, body)
        if body.stream:
            return _stream(service, body, engine_request)
        return await unless_gone(request, _whole(service, body, engine_request))

    return routes


def _prepare(service: Service, body: ChatBody) -> EngineRequest:
    tools = None if body.tool_choice == "none" else body.tools
    if body.tool_choice is not None and body.tools is None:
        raise refused("tool_choice", "there are no tools")
    if body.continue_final_message and body.messages[-1].role != "assistant":
        raise APIError(
            400,
            "continue_final_message is true; a last message by the assistant is expected",
            param="continue_final_message",
        )
    service.check_texts(texts_in([body.messages, tools]), "messages", service.longest_text)
    ids = encode(
        service.llm.tokenizer, body.messages, tools, continue_final=bool(body.continue_final_message)
    )
    service.check_length(len(ids), "messages")
    options = chat_options(body, service.llm.config.context - len(ids))
    sampling = make_sampling(options, service.settings)
    return service.llm.prepare(ids, sampling, compiled=service.compile(sampling))


def _frame(service: Service, id: str, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{id}",
        "object": kind,
        "created": int(time.time()),
        "model": service.name,
        "system_fingerprint": None,
    }


async def _whole(service: Service, body: ChatBody, request: EngineRequest) -> Response:
    found = await service.finish([request], chat=True)
    return await service.shown([live.run for live in found], lambda: _answer(service, body, found))


def _answer(service: Service, body: ChatBody, found: list[Live]) -> Response:
    runs = [live.run for live in found]
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": run.text, "refusal": None},
            "logprobs": {
                "content": [answers.logprob(service, token, body.top_logprobs or 0) for token in run.tokens],
                "refusal": None,
            }
            if body.logprobs
            else None,
            "finish_reason": answers.finish_reason(run),
            "stop_reason": run.stop_reason,
        }
        for index, run in enumerate(runs)
    ]
    answer = _frame(service, runs[0].id, "chat.completion")
    return JSON({**answer, "choices": choices, "usage": answers.usage(runs)}, headers=answers.headers(found))


def _stream(service: Service, body: ChatBody, request: EngineRequest) -> Response:
    lives = service.enter([request], chat=True)
    chunks = _chunks(service, body, lives, request)
    return EventStream(chunks, answers.headers(lives), lambda: service.leave(lives))


async def _chunks(
    service: Service, body: ChatBody, lives: list[Live], request: EngineRequest
) -> AsyncGenerator[bytes, None]:
    frame = _frame(service, lives[0].run.id, "chat.completion.chunk")
    with_usage = bool(body.stream_options and body.stream_options.include_usage)
    if with_usage:
        frame["usage"] = None

    def chunk(index: int, delta: dict[str, Any], logprobs: Any = None, **ending: Any) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None, **ending}
        return data({**frame, "choices": [choice]})

    places = {live: index for index, live in enumerate(lives)}
    try:
        for index in places.values():
            yield chunk(index, {"role": "assistant", "content": ""})
        async for event in service.events(lives, BEAT):
            if event is None:
                yield STILL_HERE
                continue
            index, run, token = places[event.live], event.live.run, event.token
            if token is not None:
                told = None
                if body.logprobs:
                    entry = answers.logprob(service, token, body.top_logprobs or 0)
                    told = {"content": [entry], "refusal": None}
                if token.text or told:
                    yield chunk(index, {"content": token.text}, told)
                continue
            service.raise_if_failed(event.live)
            if run not in request.runs:
                continue
            if run.tail:
                yield chunk(index, {"content": run.tail})
            yield chunk(index, {}, finish_reason=answers.finish_reason(run), stop_reason=run.stop_reason)
        if with_usage:
            yield data({**frame, "choices": [], "usage": answers.usage(request.runs)})
        yield b"data: [DONE]\n\n"
    except Exception as error:
        yield data(as_api_error(error).body)
