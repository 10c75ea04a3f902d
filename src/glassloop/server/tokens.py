"""`POST /tokenize` and `POST /detokenize`: what the model sees of a text."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from glassloop.server import answers
from glassloop.server.conversation import Messages, Tool, encode
from glassloop.server.errors import APIError
from glassloop.server.options import Body
from glassloop.server.service import Service
from glassloop.server.wire import JSON

_MOST_IDS = 1_000_000


class TokenizeBody(Body):
    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = Field(None, min_length=1)
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = Field(None, description="What the model wants before a text (BOS).")
    parse_special_tokens: bool | None = Field(
        None, description="The text of a special token is that token, as in a prompt of /v1/completions."
    )


class PromptToken(BaseModel):
    id: int
    piece: str
    bytes: str
    special: bool


class TokenizeAnswer(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    pieces: list[PromptToken]


class DetokenizeBody(Body):
    model: str | None = None
    tokens: list[int] = Field(max_length=_MOST_IDS)


class DetokenizeAnswer(BaseModel):
    prompt: str


def prompt_token(service: Service, token: int) -> dict[str, Any]:
    """A token of a prompt, as JSON has it."""
    tokenizer = service.llm.tokenizer
    known = token < tokenizer.vocab_size
    return {
        "id": token,
        "piece": service.llm.piece(token),
        "bytes": tokenizer.token_bytes(token).hex() if known else "",
        "special": token in tokenizer.special_ids,
    }


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["tokens"], responses=answers.ERRORS)

    @routes.post("/tokenize", response_model=TokenizeAnswer)
    async def tokenize(body: TokenizeBody) -> Response:
        service.check_model(body.model)
        return JSON(await asyncio.to_thread(_tokenize, service, body))

    @routes.post("/detokenize", response_model=DetokenizeAnswer)
    async def detokenize(body: DetokenizeBody) -> Response:
        service.check_model(body.model)
        tokenizer = service.llm.tokenizer
        for place, token in enumerate(body.tokens):
            if not 0 <= token < tokenizer.vocab_size:
                raise APIError(
                    400,
                    f"tokens[{place}] is {str(token)[:40]}; a token id below {tokenizer.vocab_size}"
                    " is expected",
                    param=f"tokens[{place}]",
                )
        return JSON({"prompt": await asyncio.to_thread(tokenizer.decode, body.tokens)})

    return routes


def _tokenize(service: Service, body: TokenizeBody) -> dict[str, Any]:
    tokenizer = service.llm.tokenizer
    if (body.prompt is None) == (body.messages is None):
        raise APIError(400, "one of prompt and messages is expected", param="prompt")
    if body.messages is not None:
        ids = encode(tokenizer, body.messages, body.tools)
    else:
        assert body.prompt is not None
        ids = tokenizer.encode(
            body.prompt,
            add_special=body.add_special_tokens is not False,
            parse_special=body.parse_special_tokens is not False,
        )
    return {
        "count": len(ids),
        "max_model_len": service.llm.config.context,
        "tokens": ids,
        "pieces": [prompt_token(service, token) for token in ids],
    }
