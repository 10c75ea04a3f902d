"""The parts of an answer that OpenAI's endpoints share: usage, log-probabilities, how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from glassloop.server.runs.state import Live
from glassloop.server.service import Service
from glassloop.trace.run import Run
from glassloop.trace.token import Token


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    error: ErrorDetail


# What every endpoint may answer besides what it promises.
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": what}
    for status, what in {
        400: "Something in the request is wrong, or not supported",
        401: "An API key is expected",
        403: "Asked by a page of another site, or under another name than localhost",
        404: "There is no such thing",
        405: "Another method is expected",
        408: "The request was not complete in time, or took longer than the server allows",
        409: "It is not in a state for that",
        413: "The body is too large",
        415: "Another content type is expected",
        422: "The body cannot be read",
        431: "The headers are too large",
        429: "Too many requests wait already; the header Retry-After says when to come again",
        500: "Something went wrong in the server",
        501: "This server cannot do that",
        503: "The server is shutting down",
    }.items()
}


class PromptDetails(BaseModel):
    cached_tokens: int


class UsageAnswer(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


def usage(runs: Sequence[Run], dropped: int = 0) -> dict[str, Any]:
    """Samples of one request share their prompt, which is counted once."""
    prompts = [run for run in runs if run.sample == 0] or list(runs[:1])
    prompt = sum(len(run.prompt_ids) for run in prompts)
    made = sum(len(run.tokens) for run in runs) - dropped
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": sum(run.cached_tokens for run in prompts)},
    }


def finish_reason(run: Run) -> str:
    """In OpenAI's words, of which there are two for us; `stop_reason` and the run have it exactly."""
    return "stop" if run.finish_reason in ("stop", "repetition") else "length"


def headers(lives: Sequence[Live]) -> dict[str, str]:
    return {"x-glassloop-run": ", ".join(live.run.id for live in lives)}


def logprob(service: Service, token: Token, wanted: int) -> dict[str, Any]:
    """The model's own log-probabilities: those are exact, and finite, whatever the stages did."""
    llm = service.llm
    return {
        "token": token.piece,
        "bytes": list(token.bytes),
        "logprob": token.raw_logprob,
        "top_logprobs": [
            {
                "token": each.text,
                "bytes": list(_bytes(service, each.id)),
                "logprob": each.raw_logprob,
            }
            for each in token.alternatives[:wanted]
            if each.id < llm.config.vocab_size
        ],
    }


def _bytes(service: Service, token: int) -> bytes:
    tokenizer = service.llm.tokenizer
    return tokenizer.token_bytes(token) if token < tokenizer.vocab_size else b""
