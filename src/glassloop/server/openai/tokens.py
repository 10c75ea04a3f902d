"""`POST /tokenize` and `POST /detokenize`: a text as the model gets it, and back."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response
from typing_extensions import TypedDict

from glassloop.errors import LengthError
from glassloop.server.http.bodies import BodyRoute
from glassloop.server.http.body_fields import TemplateValues, many, texts_in
from glassloop.server.http.errors import ERRORS, invalid
from glassloop.server.http.streaming import JSON, api_answer
from glassloop.server.openai.conversation import Messages, Tools, encode
from glassloop.server.sampling_options import Body
from glassloop.server.service import Service

_MOST_TOKENS = 200_000  # in one answer of /tokenize, or one body of /detokenize


class TokenizeBody(Body):
    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    add_generation_prompt: bool | None = Field(None, description="Open the assistant's turn; default true.")
    continue_final_message: bool | None = Field(None, description="Leave the assistant's last message open.")
    chat_template_kwargs: TemplateValues | None = Field(None, description="Values for the chat template.")
    add_special_tokens: bool | None = Field(None, description="What the model wants before a text (BOS).")
    parse_special_tokens: bool | None = Field(
        None, description="The text of a special token is that token, as in a prompt of /v1/completions."
    )


class PromptToken(TypedDict):
    id: int
    piece: str
    bytes: str
    special: bool


@api_answer
class TokenizeAnswer(TypedDict):
    count: int
    max_model_len: int
    tokens: list[int]
    pieces: list[PromptToken]


class DetokenizeBody(Body):
    model: str | None = None
    tokens: many(int, _MOST_TOKENS)  # type: ignore[valid-type]


@api_answer
class DetokenizeAnswer(TypedDict):
    prompt: str


def prompt_token(service: Service, token: int) -> PromptToken:
    tokenizer = service.llm.tokenizer
    known = token < tokenizer.vocab_size
    return PromptToken(
        id=token,
        piece=service.llm.piece(token),
        bytes=tokenizer.token_bytes(token).hex() if known else "",
        special=token in tokenizer.special_ids,
    )


def router(service: Service) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, tags=["tokens"], responses=ERRORS)

    @routes.post("/tokenize", response_model=TokenizeAnswer)
    async def tokenize(request: Request, body: TokenizeBody) -> Response:
        service.check_model(body.model)
        return await service.threads.prepare(request, body, _tokenize, service, body)

    @routes.post("/detokenize", response_model=DetokenizeAnswer)
    async def detokenize(request: Request, body: DetokenizeBody) -> Response:
        service.check_model(body.model)
        return await service.threads.prepare(request, body, _detokenize, service, body)

    return routes


def _tokenize(service: Service, body: TokenizeBody) -> Response:
    if body.messages is not None and body.prompt is None:
        service.check_texts(texts_in([body.messages, body.tools]), "messages", service.longest_text)
        ids = encode(
            service.llm.tokenizer,
            body.messages,
            body.tools,
            add_generation_prompt=body.add_generation_prompt is not False,
            continue_final=bool(body.continue_final_message),
            values=body.chat_template_kwargs,
        )
    elif body.prompt is not None and body.messages is None:
        service.check_texts([body.prompt], "prompt", max(service.longest_text, _MOST_TOKENS))
        ids = service.llm.tokenizer.encode(
            body.prompt,
            add_special=body.add_special_tokens is not False,
            parse_special=body.parse_special_tokens is not False,
        )
    else:
        raise invalid("prompt", "one of prompt and messages is expected")
    if len(ids) > _MOST_TOKENS:
        raise LengthError.about("prompt", f"has {len(ids)} tokens; at most {_MOST_TOKENS} are expected")
    answer = TokenizeAnswer(
        count=len(ids),
        max_model_len=service.llm.config.context,
        tokens=ids,
        pieces=[prompt_token(service, token) for token in ids],
    )
    return JSON(answer)


def _detokenize(service: Service, body: DetokenizeBody) -> Response:
    tokenizer = service.llm.tokenizer
    for place, token in enumerate(body.tokens):
        if not 0 <= token < tokenizer.vocab_size:
            name = f"tokens[{place}]"
            raise invalid(
                name, f"{name} is {str(token)[:40]}; a token id below {tokenizer.vocab_size} is expected"
            )
    return JSON(DetokenizeAnswer(prompt=tokenizer.decode(body.tokens)))
