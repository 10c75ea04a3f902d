"""`POST /v1/completions`: a text, or several, continued."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from glassloop.engine.request import Request as EngineRequest
from glassloop.server.errors import APIError, as_api_error
from glassloop.server.fields import Prompts, Whole
from glassloop.server.openai import answers
from glassloop.server.openai.chat import ResponseFormat, StreamOptions, add_format
from glassloop.server.operation.bodies import BodyRoute
from glassloop.server.options import SamplingOptions, make_sampling, options_of, prompts_of
from glassloop.server.runs.state import Live
from glassloop.server.service import Service
from glassloop.server.streaming import BEAT, JSON, STILL_HERE, EventStream, data, unless_gone
from glassloop.trace.run import Run
from glassloop.trace.token import Token

_MOST_LOGPROBS = 20


class CompletionBody(SamplingOptions):  # type: ignore[misc, valid-type]
    """OpenAI's parameters, and every field of Sampling."""

    prompt: Prompts
    model: str | None = None
    max_tokens: Whole | None = None
    best_of: int | None = Field(None, ge=1, le=1024)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=_MOST_LOGPROBS)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    response_format: ResponseFormat | None = None


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | None


class CompletionAnswer(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: answers.UsageAnswer
    system_fingerprint: str | None


def router(service: Service) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, tags=["OpenAI"], responses=answers.ERRORS)

    @routes.post(
        "/v1/completions",
        response_model=CompletionAnswer,
        operation_id="completions",
        responses={200: {"content": {"text/event-stream": {}}}},
    )
    async def completions(request: Request, body: CompletionBody) -> Response:
        service.check_model(body.model)
        job = await service.prepared(request, body, _Job, service, body)
        if body.stream:
            return job.stream()
        return await unless_gone(request, job.whole())

    return routes


class _Job:
    """One request: an engine request for each prompt, `best_of` runs of each, of which `n` are answered."""

    def __init__(self, service: Service, body: CompletionBody) -> None:
        self._service = service
        self._body = body
        self._n = body.given.get("n", 1)
        best_of = body.best_of or self._n
        if best_of < self._n:
            raise APIError(400, f"best_of is {best_of}; at least n, {self._n}, is expected", param="best_of")
        if body.stream and best_of > self._n:
            raise APIError(
                400,
                "best_of is larger than n, so the best are known at the end only; not with stream",
                param="best_of",
            )
        if body.stream_options is not None and not body.stream:
            raise APIError(400, "stream_options is given without stream: true", param="stream_options")
        # With echo and no new tokens only the prompt is scored; the engine chooses one all the same.
        self._scores_only = body.max_tokens == 0
        if self._scores_only and not body.echo:
            raise APIError(400, "max_tokens is 0; at least 1 is expected without echo", param="max_tokens")
        if self._scores_only and body.stream:
            raise APIError(400, "max_tokens is 0; at least 1 is expected with stream", param="max_tokens")
        options = options_of(body)
        options["n"] = best_of
        options["max_tokens"] = 16 if body.max_tokens is None else max(1, body.max_tokens)
        if body.logprobs is not None:
            options["logprobs"] = body.logprobs
            if body.echo:
                options["prompt_logprobs"] = max(1, body.logprobs)
        else:
            options.pop("logprobs", None)
        add_format(options, body.response_format)
        sampling = make_sampling(options, service.settings, "n" if body.best_of is None else "best_of")
        prompts = prompts_of(body.prompt, "prompt")
        if len(prompts) * best_of > service.settings.most_choices:
            raise APIError(
                400,
                f"prompt asks for {len(prompts) * best_of} answers; at most"
                f" {service.settings.most_choices} in one request are expected",
                param="prompt",
            )
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        for text in texts:
            service.check_text(text)
        service.check_texts(texts, "prompt")
        compiled = service.compile(sampling)
        self._requests: list[EngineRequest] = [
            service.llm.prepare(each, sampling, compiled=compiled) for each in prompts
        ]
        for request in self._requests:
            service.check_length(len(request.prompt_ids))
        self._created = int(time.time())

    def _frame(self, runs: list[Run]) -> dict[str, Any]:
        return {
            "id": f"cmpl-{runs[0].id}",
            "object": "text_completion",
            "created": self._created,
            "model": self._service.name,
            "system_fingerprint": None,
        }

    # ── the whole answer ───────────────────────────────────────────────────────────────────────────────────

    async def whole(self) -> Response:
        found = await self._service.finish(self._requests)
        return await self._service.shown([live.run for live in found], lambda: self._answer(found))

    def _answer(self, found: list[Live]) -> Response:
        best = [run for request in self._requests for run in self._best(request)]
        choices = [self._choice(index, run) for index, run in enumerate(best)]
        every = [run for request in self._requests for run in request.runs]
        usage = answers.usage(every, len(every) if self._scores_only else 0)
        ids = {live.run.id: live for live in found}
        headers = answers.headers([ids[run.id] for run in best])
        return JSON({**self._frame(best), "choices": choices, "usage": usage}, headers=headers)

    def _best(self, request: EngineRequest) -> list[Run]:
        """Those with the highest log-probability a token; in the order they came where all are wanted."""
        if len(request.runs) <= self._n or request.sampling.beam_width > 1:
            return request.runs[: self._n]
        return sorted(request.runs, key=lambda run: -run.logprob / max(1, len(run.tokens)))[: self._n]

    def _choice(self, index: int, run: Run) -> dict[str, Any]:
        body = self._body
        echo = self._text_of_prompt(run) if body.echo else ""
        made = [] if self._scores_only else run.tokens
        logprobs = None
        if body.logprobs is not None:
            logprobs = _Logprobs(self._service, body.logprobs)
            if body.echo:
                logprobs.add_unscored(run.prompt_ids[0])
                logprobs.add(run.prompt_tokens)
                logprobs.offset = len(echo)
            logprobs.add(made)
        return {
            "index": index,
            "text": echo + ("" if self._scores_only else run.text),
            "logprobs": None if logprobs is None else logprobs.plain,
            "finish_reason": "length" if self._scores_only else answers.finish_reason(run),
            "stop_reason": None if self._scores_only else run.stop_reason,
        }

    def _text_of_prompt(self, run: Run) -> str:
        return self._service.llm.tokenizer.decode(run.prompt_ids) if run.prompt is None else run.prompt

    # ── as it comes ────────────────────────────────────────────────────────────────────────────────────────

    def stream(self) -> Response:
        lives = self._service.enter(self._requests)
        return EventStream(self._chunks(lives), answers.headers(lives), lambda: self._service.leave(lives))

    async def _chunks(self, lives: list[Live]) -> AsyncGenerator[bytes, None]:
        service, body = self._service, self._body
        frame = self._frame([live.run for live in lives])
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        if with_usage:
            frame["usage"] = None
        index_of = {live: index for index, live in enumerate(lives)}
        offsets: dict[Live, int] = dict.fromkeys(lives, 0)
        begun: set[Live] = set()

        def chunk(live: Live, text: str, logprobs: Any = None, **ending: Any) -> bytes:
            choice = {
                "index": index_of[live],
                "text": text,
                "logprobs": logprobs,
                "finish_reason": None,
                **ending,
            }
            return data({**frame, "choices": [choice]})

        try:
            async for event in service.events(lives, BEAT):
                if event is None:
                    yield STILL_HERE
                    continue
                live, run, token = event.live, event.live.run, event.token
                if body.echo and live not in begun:
                    begun.add(live)
                    text = self._text_of_prompt(run)
                    told = None
                    if body.logprobs is not None:
                        scored = _Logprobs(service, body.logprobs)
                        scored.add_unscored(run.prompt_ids[0])
                        scored.add(run.prompt_tokens)
                        told = scored.plain
                    offsets[live] = len(text)
                    yield chunk(live, text, told)
                if token is not None:
                    told = None
                    if body.logprobs is not None:
                        scored = _Logprobs(service, body.logprobs, offsets[live])
                        scored.add([token])
                        told, offsets[live] = scored.plain, scored.offset
                    if token.text or told:
                        yield chunk(live, token.text, told)
                    continue
                service.raise_if_failed(live)
                if any(run in request.runs for request in self._requests):
                    ending = {"finish_reason": answers.finish_reason(run), "stop_reason": run.stop_reason}
                    yield chunk(live, run.tail, **ending)
            if with_usage:
                runs = [run for request in self._requests for run in request.runs]
                yield data({**frame, "choices": [], "usage": answers.usage(runs)})
            yield b"data: [DONE]\n\n"
        except Exception as error:
            yield data(as_api_error(error).body)


class _Logprobs:
    """The older form of log-probabilities: parallel lists."""

    def __init__(self, service: Service, wanted: int, offset: int = 0) -> None:
        self._service = service
        self._wanted = wanted
        self.offset = offset
        self._tokens: list[str] = []
        self._logprobs: list[float | None] = []
        self._top: list[dict[str, float] | None] = []
        self._offsets: list[int] = []

    def add_unscored(self, id: int) -> None:
        """The first token of a prompt: nothing comes before it."""
        self._add(self._service.llm.piece(id), None, None)

    def add(self, tokens: list[Token]) -> None:
        for token in tokens:
            top = {each.text: each.raw_logprob for each in token.alternatives[: self._wanted]}
            top.setdefault(token.piece, token.raw_logprob)
            self._add(token.piece, token.raw_logprob, top)

    def _add(self, piece: str, logprob: float | None, top: dict[str, float] | None) -> None:
        self._tokens.append(piece)
        self._logprobs.append(logprob)
        self._top.append(top)
        self._offsets.append(self.offset)
        self.offset += len(piece)

    @property
    def plain(self) -> dict[str, Any]:
        return {
            "tokens": self._tokens,
            "token_logprobs": self._logprobs,
            "top_logprobs": self._top if self._wanted else None,
            "text_offset": self._offsets,
        }
