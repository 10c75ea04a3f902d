"""What the generating endpoints (chat, completions, responses) share: engine requests are computed and
answered, as a whole or as a stream. An endpoint adds its options and its shapes.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from math import isnan
from typing import Any, Literal, NotRequired, TypeVar

from fastapi import Request as HTTPRequest
from pydantic import Field
from starlette.responses import Response
from typing_extensions import TypedDict

from glassloop.decode.sampling import Sampling
from glassloop.engine.request import Request
from glassloop.engine.tasks.revise import Held
from glassloop.errors import SamplingError
from glassloop.record.run import Run
from glassloop.record.token import Alternative, Token
from glassloop.server.diffusion_options import DiffusionOptions, diffused
from glassloop.server.http.body_fields import many
from glassloop.server.http.clients import client_of
from glassloop.server.http.errors import APIError, as_api_error, invalid
from glassloop.server.http.streaming import (
    EVENTS,
    JSON,
    KEEP_ALIVE,
    STILL_HERE,
    EventStream,
    data,
    unless_gone,
)
from glassloop.server.runs.state import RunState
from glassloop.server.sampling_options import Body, SamplingOptions
from glassloop.server.service import Service

B = TypeVar("B", bound=Body)


async def respond(
    service: Service, request: HTTPRequest, body: B, prepare: Callable[[Service, B], Generation]
) -> Response:
    """Answers an HTTP request with what `prepare` makes of its body."""
    adapter = service.adapter_of(body.given.get("model"))
    if adapter is not None:
        if body.given.get("adapter", adapter) != adapter:
            raise invalid("adapter", f"adapter is not that of model, {adapter!r}; one of the two is expected")
        body.adapter = adapter  # type: ignore[attr-defined]  # a field of Sampling
    generation = await service.threads.prepare(request, body, _prepare, prepare, service, body)
    generation.client = client_of(request)
    if body.given.get("background"):
        return await generation.background(body.streams)
    if body.streams:
        return generation.stream()
    return await unless_gone(request.receive, generation.whole())


def _prepare(prepare: Callable[[Service, B], Generation], service: Service, body: B) -> Generation:
    """Returns what `prepare` makes of a body. An error about an option names the field that the client has
    sent."""
    try:
        return prepare(service, body)
    except SamplingError as error:
        # Its own name, or that of an entry: choice[0].
        option = re.split(r"[.\[]", error.field or "")[0]
        field = next((field for field, name in body.renamed.items() if name == option), None)
        if field is None:
            raise
        raise invalid(field, field + str(error).removeprefix(option)) from None


class Generation(ABC):
    """One HTTP request for text: its engine requests, and the answer in the shapes of its endpoint."""

    media_type = EVENTS  # of a stream

    def __init__(self, service: Service, requests: Sequence[Request]) -> None:
        self.service = service
        self.requests = requests
        self.client = ""  # who has asked for it

    @property
    def model(self) -> str:
        """The model as a client names it: with the adapter, if there is one."""
        adapter = self.requests[0].sampling.adapter if self.requests else None
        return self.service.name if adapter is None else f"{self.service.name}:{adapter}"

    @property
    def runs(self) -> list[Run]:
        """The runs of all requests. A beam search that has found fewer texts takes the others out."""
        return [run for request in self.requests for run in request.runs]

    @property
    def answered(self) -> list[Run]:
        """The runs that the answer shows."""
        return self.runs

    async def whole(self) -> Response:
        await self.service.control.finish(self.requests)
        await self.keep()
        runs = self.answered
        return await self.service.threads.render(
            self.runs, lambda: JSON(self.answer(runs), headers=self.headers(runs))
        )

    def stream(self) -> Response:
        states = self.service.control.start_for_client(self.requests)
        headers = self.headers([state.run for state in states])
        release = partial(self.service.control.release, states)
        return EventStream(self._chunks(states), headers, release, self.media_type)

    async def background(self, streams: bool) -> Response:
        """Starts the runs, which go on without the client, and returns the stream or what there is now."""
        states = self.service.control.start(self.requests)
        headers = self.headers([state.run for state in states])
        if streams:
            return EventStream(self._chunks(states), headers, media_type=self.media_type)
        await self.keep()
        return JSON(self.at_once(), headers=headers)

    async def keep(self) -> None:
        """Keeps what the request said that its runs do not record, once these have begun."""
        return

    def at_once(self) -> Mapping[str, Any]:
        """Returns the answer to a request whose runs go on in the background."""
        raise NotImplementedError

    async def _chunks(self, states: list[RunState]) -> AsyncGenerator[bytes, None]:
        places = {state: index for index, state in enumerate(states)}
        held = {
            index: Held(state.run.sampling.revise_window)
            for state, index in places.items()
            if state.run.sampling.revise
        }
        try:
            await self.keep()
            if chunk := self.begin([state.run for state in states]):
                yield chunk
            async for event in self.service.control.events(states, KEEP_ALIVE):
                if event is None:
                    yield self.still_here()
                    continue
                state = event.state
                if event.kind == "taken_back" and state.successor is not None:
                    places[state.successor] = places[state]
                index = places[state]
                if event.token is not None:
                    chunk = (
                        self.token(index, state.run, event.token)
                        if not held
                        else b"".join(
                            [self.token(index, state.run, token) for token in held[index].add(event.token)]
                        )
                    )
                else:
                    self.service.control.raise_if_failed(state)
                    rest = held[index].rest() if held else []
                    chunk = b"".join([self.token(index, state.run, token) for token in rest])
                    chunk += self.end(index, state.run) if state.run in self.runs else b""
                if chunk:
                    yield chunk
            yield await self.finish()
        except Exception as error:
            yield self.failed(as_api_error(error))

    def headers(self, runs: list[Run]) -> dict[str, str]:
        return run_headers(runs)

    def still_here(self) -> bytes:
        """Returns what is sent when nothing has come for a while."""
        return STILL_HERE

    @abstractmethod
    def answer(self, runs: list[Run]) -> Mapping[str, Any]:
        """Returns the whole answer."""

    # Each of these returns events to send, none or several.

    @abstractmethod
    def begin(self, runs: list[Run]) -> bytes: ...

    @abstractmethod
    def token(self, index: int, run: Run, token: Token) -> bytes: ...

    @abstractmethod
    def end(self, index: int, run: Run) -> bytes: ...

    @abstractmethod
    async def finish(self) -> bytes: ...

    @abstractmethod
    def failed(self, error: APIError) -> bytes: ...


# ── chat and completions ───────────────────────────────────────────────────────────────────────────────────


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # as in vLLM: the usage so far in every chunk
    include_obfuscation: bool | None = None  # accepted: it never changes what a client reads


class JSONSchema(Body):
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JSONSchema | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")  # of a json_object, as in llama.cpp


class StructuredOutputs(Body):
    """A constraint with vLLM's names."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: many(str, 1024) | None = None  # type: ignore[valid-type]
    grammar: str | None = None
    json_object: bool | None = None


class ChoicesBody(SamplingOptions):  # type: ignore[misc, valid-type]
    """The parameters that chat and completions share, and every field of Sampling."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    # vLLM's names of json_schema, regex, choice and grammar.
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: many(str, 1024) | None = None  # type: ignore[valid-type]
    guided_grammar: str | None = None
    # Beyond OpenAI: the text is written by filling masks, block by block.
    diffusion: DiffusionOptions | None = None
    user: str | None = None

    @property
    def renamed(self) -> dict[str, str]:
        return {field: name for field, (name, _) in _structured(self).items()}


class Choices(Generation):
    """A generation whose answer is a list of choices, in a frame with id, model and usage."""

    id_prefix: str
    chunk_kind: str

    def __init__(self, service: Service, body: ChoicesBody, requests: Sequence[Request]) -> None:
        if body.diffusion is not None:
            requests = [diffused(service, request, body.diffusion) for request in requests]
        super().__init__(service, requests)
        if body.stream_options is not None and not body.stream:
            raise invalid("stream_options", "stream_options is given without stream: true")
        self.with_prompt = bool(body.given.get("prompt_logprobs"))
        if self.with_prompt and body.stream:
            raise invalid("prompt_logprobs", "prompt_logprobs is not streamed; ask for it without stream")
        options = body.stream_options or StreamOptions()
        self._with_usage = bool(options.include_usage)
        self._usage_in_each = bool(options.include_usage and options.continuous_usage_stats)
        self.fingerprint = service.fingerprint
        self._frame: dict[str, Any] = {}

    def usage(self) -> UsageAnswer:
        return usage_of(self.runs)

    # A chunk is made for every token, so it is a plain dictionary.

    def begin(self, runs: list[Run]) -> bytes:
        self._frame = {
            "id": self.id_prefix + runs[0].id,
            "object": self.chunk_kind,
            "created": int(time.time()),
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }
        if self._with_usage:
            self._frame["usage"] = None
        return b""

    def chunk(self, index: int, logprobs: Any = None, **choice: Any) -> bytes:
        """Returns the event for a part of one choice."""
        part = {"index": index, "logprobs": logprobs, "finish_reason": None, **choice}
        usage = {"usage": self.usage()} if self._usage_in_each else {}
        return data({**self._frame, **usage, "choices": [part]})

    async def finish(self) -> bytes:
        usage = b""
        if self._with_usage:
            usage = data({**self._frame, "choices": [], "usage": self.usage()})
        return usage + b"data: [DONE]\n\n"

    def failed(self, error: APIError) -> bytes:
        return data(error.body)


# ── parts of answers ───────────────────────────────────────────────────────────────────────────────────────


class PromptDetails(TypedDict):
    cached_tokens: int


class CompletionDetails(TypedDict):
    reasoning_tokens: int


class UsageAnswer(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: NotRequired[CompletionDetails]  # of models that think


def thought_tokens(runs: Sequence[Run]) -> int:
    """Returns how many tokens of runs are thoughts."""
    thoughts = [span for run in runs if run.form for span in run.spans if span.kind == "thought"]
    return sum(span.last - span.first for span in thoughts)


def usage_of(runs: Sequence[Run], dropped: int = 0) -> UsageAnswer:
    """Returns the tokens used by runs, less `dropped` ones that are not answered. Samples of one request
    share their prompt, which is counted once."""
    prompts = [run for run in runs if run.sample == 0] or list(runs[:1])
    # What another engine did not report counts as none: clients expect numbers.
    prompt = sum(run.usage.prompt_tokens or 0 for run in prompts)
    answer = sum(run.usage.completion_tokens or 0 for run in runs) - dropped
    usage = UsageAnswer(
        prompt_tokens=prompt,
        completion_tokens=answer,
        total_tokens=prompt + answer,
        prompt_tokens_details=PromptDetails(
            cached_tokens=sum(run.usage.cached_tokens or 0 for run in prompts)
        ),
    )
    if any(run.form for run in runs):
        usage["completion_tokens_details"] = CompletionDetails(reasoning_tokens=thought_tokens(runs))
    return usage


class PromptLogprob(TypedDict):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


def prompt_logprobs(run: Run) -> PromptLogprobs:
    """Returns the log-probabilities of a prompt as vLLM does: for each token those of itself and of the most
    likely ones, by id. The first token has none, since nothing comes before it."""
    logprobs: PromptLogprobs = [None]
    for token in run.prompt_tokens:
        likely = token.alternatives[: run.sampling.prompt_logprobs]
        of_token = {
            str(each.id): PromptLogprob(logprob=each.raw_logprob, rank=rank, decoded_token=each.text)
            for rank, each in enumerate(likely, 1)
        }
        of_token[str(token.id)] = PromptLogprob(
            logprob=token.raw_logprob, rank=token.rank, decoded_token=token.piece
        )
        logprobs.append(of_token)
    return logprobs


def finish_reason(run: Run) -> Literal["stop", "length"]:
    """Returns how a run ended, by the two of OpenAI's words that apply; `stop_reason` and the run have it
    exactly."""
    return "stop" if run.finish_reason in ("stop", "repetition") else "length"


def run_headers(runs: Sequence[Run]) -> dict[str, str]:
    return {"x-glassloop-run": ", ".join(run.id for run in runs), "x-request-id": runs[0].id}


class Logprob(TypedDict):
    token: str
    bytes: list[int] | None
    logprob: float | None  # null only for a token of another engine that did not report it


class TokenLogprob(Logprob):
    top_logprobs: list[Logprob]


def token_logprob(service: Service, token: Token, count: int) -> TokenLogprob:
    """Returns the log-probabilities of a token and of `count` alternatives: the model's own, which are exact
    and finite whatever the stages did."""
    tokenizer, size = service.llm.tokenizer, service.llm.config.vocab_size
    elsewhere = service.llm.upstream is not None

    def bytes_of(each: Alternative) -> bytes:
        if elsewhere:
            return each.text.encode()
        return tokenizer.token_bytes(each.id) if each.id < tokenizer.vocab_size else b""

    return TokenLogprob(
        token=token.piece,
        bytes=list(token.bytes),
        logprob=None if isnan(token.raw_logprob) else token.raw_logprob,
        top_logprobs=[
            Logprob(token=each.text, bytes=list(bytes_of(each)), logprob=each.raw_logprob)
            for each in token.alternatives[:count]
            if each.id < size
        ],
    )


# ── options ────────────────────────────────────────────────────────────────────────────────────────────────


def add_formats(options: dict[str, Any], body: ChoicesBody) -> None:
    """Adds what `response_format`, and vLLM's names of the constraints, ask for to the options."""
    _add_structured(options, body)
    format = body.response_format
    if format is None:
        return
    if format.type == "json_object" and format.schema_ is not None:
        options["json_schema"] = format.schema_
        return
    schema = None if format.json_schema is None else format.json_schema.schema_
    add_format(options, format.type, schema, "response_format.json_schema.schema")


def _add_structured(options: dict[str, Any], body: ChoicesBody) -> None:
    for field, (name, value) in _structured(body).items():
        if name in options:
            raise invalid(field, f"{field} and another {name} are both given; one of them is expected")
        options[name] = value


def _structured(body: ChoicesBody) -> dict[str, tuple[str, Any]]:
    """Returns the constraints with vLLM's names in a body: the option and its value, by field."""
    outputs = body.structured_outputs or StructuredOutputs(json=None)
    json_object = {"type": "object"} if outputs.json_object else None
    constraints: dict[str, tuple[str, Any]] = {
        "guided_json": ("json_schema", body.guided_json),
        "guided_regex": ("regex", body.guided_regex),
        "guided_choice": ("choice", body.guided_choice),
        "guided_grammar": ("grammar", body.guided_grammar),
        "structured_outputs.json": ("json_schema", outputs.json_),
        "structured_outputs.json_object": ("json_schema", json_object),
        "structured_outputs.regex": ("regex", outputs.regex),
        "structured_outputs.choice": ("choice", outputs.choice),
        "structured_outputs.grammar": ("grammar", outputs.grammar),
    }
    return {field: (name, value) for field, (name, value) in constraints.items() if value is not None}


def add_format(options: dict[str, Any], kind: str, schema: dict[str, Any] | None, field: str) -> None:
    """Adds the constraint of a format to the options; `field` is where the client gives the schema."""
    if kind == "json_object":
        options["json_schema"] = {"type": "object"}
    elif kind == "json_schema":
        if schema is None:
            raise invalid(field, f"{field} is missing")
        options["json_schema"] = schema


def add_top_logprobs(options: dict[str, Any], count: int | None, is_on: bool, switch: str) -> None:
    """Adds the number of alternatives that are recorded for each token. `is_on` is whether the client gave
    `switch`, without which the number means nothing."""
    if count is None:
        return
    if not is_on:
        raise invalid("top_logprobs", f"top_logprobs is given without {switch}")
    options["logprobs"] = max(count, Sampling.logprobs)
