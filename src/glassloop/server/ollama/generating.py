"""`POST /api/chat`, `/api/generate`, `/api/embed` and `/api/embeddings`: what Ollama's clients ask of a
model."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from glassloop.engine.deadline import Deadline
from glassloop.server.http.bodies import BodyRoute
from glassloop.server.http.error_shapes import OllamaErrorAnswer
from glassloop.server.http.errors import errors_of, invalid
from glassloop.server.http.streaming import JSON, api_answer
from glassloop.server.ollama.answers import (
    OllamaChat,
    OllamaChatAnswer,
    OllamaGenerateAnswer,
    OllamaText,
    now,
)
from glassloop.server.ollama.bodies import (
    GeneratingBody,
    OllamaChatBody,
    OllamaEmbedBody,
    OllamaEmbeddingBody,
    OllamaGenerateBody,
)
from glassloop.server.openai.embeddings import encode_one, unit_vector
from glassloop.server.openai.generation import respond
from glassloop.server.sampling_options import Body
from glassloop.server.service import Service

_LINES: dict[int | str, dict[str, Any]] = {200: {"content": {"application/x-ndjson": {}}}}  # for OpenAPI


@api_answer
class OllamaEmbeddings(TypedDict):
    model: str
    embeddings: list[list[float]]
    prompt_eval_count: int


@api_answer
class OllamaEmbedding(TypedDict):
    embedding: list[float]


def router(service: Service) -> APIRouter:
    routes = APIRouter(
        route_class=BodyRoute, prefix="/api", tags=["Ollama"], responses=errors_of(OllamaErrorAnswer)
    )

    @routes.post("/chat", response_model=OllamaChatAnswer, operation_id="ollama_chat", responses=_LINES)
    async def chat(request: Request, body: OllamaChatBody) -> Response:
        if not body.messages:
            return _loaded(service, body, {"message": {"role": "assistant", "content": ""}})
        return await respond(service, request, body, OllamaChat)

    @routes.post(
        "/generate", response_model=OllamaGenerateAnswer, operation_id="ollama_generate", responses=_LINES
    )
    async def generate(request: Request, body: OllamaGenerateBody) -> Response:
        if not body.prompt:
            return _loaded(service, body, {"response": ""})
        return await respond(service, request, body, OllamaText)

    @routes.post("/embed", response_model=OllamaEmbeddings, operation_id="ollama_embed")
    async def embed(request: Request, body: OllamaEmbedBody) -> Response:
        service.check_model(body.model)
        dim = service.llm.config.dim
        if body.dimensions not in (None, dim):
            message = f"dimensions is {body.dimensions}; this model has {dim} and cannot be cut"
            raise invalid("dimensions", message)
        texts = [body.input] if isinstance(body.input, str) else body.input
        cut = body.truncate is not False
        inputs = await service.threads.prepare(request, body, _encoded, service, body, texts, "input", cut)

        def work(deadline: Deadline) -> Response:
            vectors = [unit_vector(service, ids, deadline).tolist() for ids in inputs]
            count = sum(map(len, inputs))
            return JSON(OllamaEmbeddings(model=service.name, embeddings=vectors, prompt_eval_count=count))

        return await service.threads.read_model(request, work)

    @routes.post("/embeddings", response_model=OllamaEmbedding, operation_id="ollama_embedding")
    async def embedding(request: Request, body: OllamaEmbeddingBody) -> Response:
        service.check_model(body.model)
        (ids,) = await service.threads.prepare(
            request, body, _encoded, service, body, [body.prompt], "prompt", True
        )

        def work(deadline: Deadline) -> Response:
            return JSON(OllamaEmbedding(embedding=unit_vector(service, ids, deadline).tolist()))

        return await service.threads.read_model(request, work)

    return routes


def _encoded(service: Service, body: Body, texts: list[str], field: str, cut: bool) -> list[list[int]]:
    service.check_texts(texts, field)
    return [encode_one(service, text, field, cut=cut) for text in texts]


def _loaded(service: Service, body: GeneratingBody, said: dict[str, Any]) -> Response:
    """Returns the answer to a request without a prompt, by which clients have a model loaded or unloaded: it
    is loaded, as far as its server decides so."""
    service.adapter_of(body.model)
    reason = "unload" if body.unloads else "load"
    return JSON({"model": service.name, "created_at": now(), **said, "done": True, "done_reason": reason})
