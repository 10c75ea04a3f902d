"""`POST /v1/completions`: a text, or several, continued."""

from __future__ import annotations

import time
from codecs import getincrementaldecoder
from collections.abc import Iterable
from math import isnan
from typing import Literal, NotRequired

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response
from typing_extensions import TypedDict

from glassloop.engine.request import Request as EngineRequest
from glassloop.errors import SamplingError
from glassloop.record.run import Run
from glassloop.record.run_name import COMPLETION
from glassloop.record.token import Token
from glassloop.server.http.bodies import BodyRoute
from glassloop.server.http.body_fields import Prompts
from glassloop.server.http.errors import ERRORS, invalid
from glassloop.server.http.streaming import STREAMED, api_answer
from glassloop.server.openai.generation import (
    Choices,
    ChoicesBody,
    PromptLogprobs,
    UsageAnswer,
    add_formats,
    finish_reason,
    prompt_logprobs,
    respond,
    usage_of,
)
from glassloop.server.sampling_options import make_sampling, options_of, prompts_of
from glassloop.server.service import Service

_MOST_LOGPROBS = 20


class CompletionBody(ChoicesBody):
    """OpenAI's parameters, and every field of Sampling."""

    prompt: Prompts
    max_tokens: int | None = Field(None, ge=-1, le=(1 << 31) - 1)
    best_of: int | None = Field(None, ge=1, le=1024)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=_MOST_LOGPROBS)


class CompletionLogprobs(TypedDict):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | None
    prompt_logprobs: NotRequired[PromptLogprobs]


@api_answer
class CompletionAnswer(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[CompletionChoice]
    usage: UsageAnswer


def router(service: Service) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, tags=["OpenAI"], responses=ERRORS)

    @routes.post(
        "/v1/completions", response_model=CompletionAnswer, operation_id="completions", responses=STREAMED
    )
    async def completions(request: Request, body: CompletionBody) -> Response:
        return await respond(service, request, body, _Completion)

    return routes


class _Completion(Choices):
    """An engine request for each prompt, with `best_of` runs each; the best `n` of them are answered."""

    id_prefix, chunk_kind = COMPLETION, "text_completion"

    def __init__(self, service: Service, body: CompletionBody) -> None:
        self._n = body.given.get("n", 1)
        if self._n < 1:
            raise invalid("n", f"n is {self._n}; a whole number from 1 to 1024 is expected")
        best_of = body.best_of or self._n
        if best_of < self._n:
            raise invalid("best_of", f"best_of is {best_of}; at least n, {self._n}, is expected")
        if body.stream and best_of > self._n:
            message = "best_of is larger than n, so the best are known at the end only; not with stream"
            raise invalid("best_of", message)
        # With echo and no new tokens only the prompt is scored; the engine chooses one token all the same.
        self._scores_only = body.max_tokens == 0
        if self._scores_only and (body.stream or not body.echo):
            how = "with stream" if body.echo else "without echo"
            raise invalid("max_tokens", f"max_tokens is 0; at least 1 is expected {how}")
        options = options_of(body)
        options["n"] = best_of
        options["max_tokens"] = _most_tokens(body.max_tokens, service.llm.config.context)
        if body.logprobs is not None and body.echo:
            options["prompt_logprobs"] = max(1, body.logprobs, options.get("prompt_logprobs", 0))
        add_formats(options, body)
        counted = "n" if body.best_of is None else "best_of"
        sampling = make_sampling(options, service.settings, counted, service.llm.default_sampling)
        prompts = prompts_of(body.prompt, "prompt")
        count, most = len(prompts) * best_of, service.settings.most_choices
        if count > most:
            message = f"prompt asks for {count} answers; at most {most} in one request are expected"
            raise invalid("prompt", message)
        service.check_texts((prompt for prompt in prompts if isinstance(prompt, str)), "prompt")
        compiled = service.llm.compile(sampling)
        try:
            super().__init__(service, body, [service.prepare(each, sampling, compiled) for each in prompts])
        except SamplingError as error:
            if error.field == "prompt_logprobs" and not body.given.get("prompt_logprobs"):
                raise invalid(
                    "echo", f"echo is given with logprobs, which scores the prompt; {error}"
                ) from None
            raise
        self._echo, self._top = bool(body.echo), body.logprobs
        self._offsets: dict[int, _Offsets] = {}  # in the text of each choice that has begun

    # ── the whole answer ───────────────────────────────────────────────────────────────────────────────────

    @property
    def answered(self) -> list[Run]:
        return [run for request in self.requests for run in self._best(request)]

    def _best(self, request: EngineRequest) -> list[Run]:
        """Returns the n runs with the highest log-probability per token, in their order where all are
        wanted."""
        if len(request.runs) <= self._n or request.sampling.beam_width > 1:
            return request.runs[: self._n]
        return sorted(request.runs, key=lambda run: -run.logprob / max(1, len(run.tokens)))[: self._n]

    def answer(self, runs: list[Run]) -> CompletionAnswer:
        return CompletionAnswer(
            id=self.id_prefix + runs[0].id,
            object="text_completion",
            created=int(time.time()),
            model=self.model,
            system_fingerprint=self.fingerprint,
            choices=[self._choice(index, run) for index, run in enumerate(runs)],
            usage=self.usage(),
        )

    def usage(self) -> UsageAnswer:
        return usage_of(self.runs, len(self.runs) if self._scores_only else 0)

    def _choice(self, index: int, run: Run) -> CompletionChoice:
        echo = self._prompt(run) if self._echo else ""
        tokens, text = ([], "") if self._scores_only else (run.tokens, run.text)
        logprobs = self._logprobs(tokens, _Offsets(len(echo)))
        of_prompt = self._prompt_logprobs(run) if self._echo else None
        if logprobs is not None and of_prompt is not None:
            logprobs = _joined(of_prompt, logprobs)
        choice = CompletionChoice(
            index=index,
            text=echo + text,
            logprobs=logprobs,
            finish_reason="length" if self._scores_only else finish_reason(run),
            stop_reason=None if self._scores_only else run.stop_reason,
        )
        if self.with_prompt:
            choice["prompt_logprobs"] = prompt_logprobs(run)
        return choice

    def _prompt(self, run: Run) -> str:
        return self.service.llm.tokenizer.decode(run.prompt_ids) if run.prompt is None else run.prompt

    # ── as it comes ────────────────────────────────────────────────────────────────────────────────────────

    def token(self, index: int, run: Run, token: Token) -> bytes:
        before = b"" if index in self._offsets else self._begin(index, run)
        logprobs = self._logprobs([token], self._offsets[index])
        if not token.text and logprobs is None:
            return before
        return before + self.chunk(index, logprobs, text=token.text)

    def end(self, index: int, run: Run) -> bytes:
        before = b"" if index in self._offsets else self._begin(index, run)
        ending = {"finish_reason": finish_reason(run), "stop_reason": run.stop_reason}
        return before + self.chunk(index, text=run.tail, **ending)

    def _begin(self, index: int, run: Run) -> bytes:
        """Returns the prompt as a chunk where it is echoed."""
        text = self._prompt(run) if self._echo else ""
        self._offsets[index] = _Offsets(len(text))
        return self.chunk(index, self._prompt_logprobs(run), text=text) if self._echo else b""

    # ── log-probabilities ──────────────────────────────────────────────────────────────────────────────────

    def _prompt_logprobs(self, run: Run) -> CompletionLogprobs | None:
        """Returns the log-probabilities of a prompt's tokens. The first has none: nothing comes before it."""
        llm, first, offsets = self.service.llm, run.prompt_ids[0], _Offsets(0)
        piece, has_bytes = llm.piece(first), first < llm.tokenizer.vocab_size
        if not run.origin.is_local:  # the first token is what the others do not cover
            piece = (run.prompt or "").removesuffix("".join([token.piece for token in run.prompt_tokens]))
        offsets.add(llm.tokenizer.token_bytes(first) if has_bytes else piece.encode())
        rest = self._logprobs(run.prompt_tokens, offsets)
        if rest is None:
            return None
        of_first = CompletionLogprobs(
            tokens=[piece],
            token_logprobs=[None],
            top_logprobs=[None],
            text_offset=[0],
        )
        return _joined(of_first, rest)

    def _logprobs(self, tokens: Iterable[Token], offsets: _Offsets) -> CompletionLogprobs | None:
        """Returns log-probabilities as parallel lists, the older form, or None if they are not wanted."""
        if self._top is None:
            return None
        pieces: list[str] = []
        logprobs: list[float | None] = []
        top: list[dict[str, float] | None] = []
        places: list[int] = []
        for token in tokens:
            alternatives = {each.text: each.raw_logprob for each in token.alternatives[: self._top]}
            has_logprob = not isnan(token.raw_logprob)
            if has_logprob:
                alternatives.setdefault(token.piece, token.raw_logprob)
            pieces.append(token.piece)
            logprobs.append(token.raw_logprob if has_logprob else None)
            top.append(alternatives)
            places.append(offsets.add(token.bytes))
        return CompletionLogprobs(
            tokens=pieces,
            token_logprobs=logprobs,
            top_logprobs=top,  # with logprobs: 0 it has the token itself
            text_offset=places,
        )


def _joined(one: CompletionLogprobs, other: CompletionLogprobs) -> CompletionLogprobs:
    """Returns the log-probabilities of two texts, one after the other."""
    top, other_top = one["top_logprobs"], other["top_logprobs"]
    return CompletionLogprobs(
        tokens=one["tokens"] + other["tokens"],
        token_logprobs=one["token_logprobs"] + other["token_logprobs"],
        top_logprobs=None if top is None or other_top is None else top + other_top,
        text_offset=one["text_offset"] + other["text_offset"],
    )


def _most_tokens(limit: int | None, context: int) -> int:
    """Returns how many tokens an answer may have: OpenAI's 16 if there is no limit, all for -1."""
    return 16 if limit is None else context if limit < 0 else max(1, limit)


class _Offsets:
    """Counts the characters of a text as its tokens come. A character may take several tokens."""

    def __init__(self, start: int) -> None:
        self._next = start
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def add(self, data: bytes) -> int:
        """Returns the offset of a token with these bytes, after those that were added before."""
        offset = self._next
        self._next += len(self._decoder.decode(data))
        return offset
