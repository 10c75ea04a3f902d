"""`POST /v1/embeddings`: the mean of the last hidden states of a text's tokens, scaled to length one."""

from __future__ import annotations

import base64
from typing import Literal

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from glassloop.engine.deadline import Deadline
from glassloop.engine.request_maker import Prompt
from glassloop.ops.quant import Float32
from glassloop.server.http.bodies import BodyRoute
from glassloop.server.http.body_fields import Prompts, Whole
from glassloop.server.http.errors import ERRORS, invalid
from glassloop.server.http.streaming import JSON, api_answer
from glassloop.server.sampling_options import Body, prompts_of
from glassloop.server.service import Service

_MOST_INPUTS = 256


class EmbeddingBody(Body):
    input: Prompts
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Whole | None = None
    user: str | None = None


class Embedding(TypedDict):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


@api_answer
class EmbeddingAnswer(TypedDict):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


def router(service: Service) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, tags=["OpenAI"], responses=ERRORS)

    @routes.post("/v1/embeddings", response_model=EmbeddingAnswer)
    async def embeddings(request: Request, body: EmbeddingBody) -> Response:
        service.check_model(body.model)
        dim = service.llm.config.dim
        if body.dimensions not in (None, dim):
            message = f"dimensions is {body.dimensions}; this model has {dim} and cannot be cut"
            raise invalid("dimensions", message)
        inputs = await service.threads.prepare(request, body, _encode, service, body)
        return await service.threads.read_model(
            request, lambda deadline: _embed(service, body, inputs, deadline)
        )

    return routes


def unit_vector(service: Service, ids: list[int], deadline: Deadline) -> Float32:
    """Returns the embedding of a text, of length one."""
    mean = service.llm.embed(ids, deadline=deadline)
    length = float(np.linalg.norm(mean))
    return mean / np.float32(length) if length else mean


def _embed(service: Service, body: EmbeddingBody, inputs: list[list[int]], deadline: Deadline) -> Response:
    embeddings = []
    for index, ids in enumerate(inputs):
        vector = unit_vector(service, ids, deadline)
        if body.encoding_format == "base64":
            shown: list[float] | str = base64.b64encode(vector.astype("<f4").tobytes()).decode()
        else:
            shown = vector.tolist()
        embeddings.append(Embedding(object="embedding", index=index, embedding=shown))
    tokens = sum(map(len, inputs))
    usage = EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens)
    return JSON(EmbeddingAnswer(object="list", data=embeddings, model=service.name, usage=usage))


def _encode(service: Service, body: EmbeddingBody) -> list[list[int]]:
    inputs = prompts_of(body.input, "input")
    if len(inputs) > _MOST_INPUTS:
        raise invalid("input", f"input has {len(inputs)} texts; at most {_MOST_INPUTS} are expected")
    service.check_texts((each for each in inputs if isinstance(each, str)), "input")
    return [encode_one(service, each, "input", f"input[{place}]") for place, each in enumerate(inputs)]


def encode_one(
    service: Service, text_or_ids: Prompt, field: str, name: str | None = None, *, cut: bool = False
) -> list[int]:
    """Returns the token ids of one input. An error is about `field` and calls the input `name`; with `cut`
    what the context does not hold is left out."""
    name = name or field
    if isinstance(text_or_ids, str):
        text = text_or_ids[: service.longest_text] if cut else text_or_ids
        service.check_text(text, field)
        ids = service.llm.tokenizer.encode(text, parse_special=False)
    else:
        ids = list(text_or_ids)
    if cut:
        del ids[service.most_prompt :]
    service.check_length(len(ids), field)
    if not ids:
        raise invalid(field, f"{name} is empty; at least one token is expected")
    last = service.llm.config.vocab_size - 1
    if any(not 0 <= token <= last for token in ids):
        raise invalid(field, f"{name} has token ids outside the vocabulary, 0 to {last}")
    return ids
