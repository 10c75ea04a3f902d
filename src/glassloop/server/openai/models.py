"""`GET /v1/models`: the one that is served. And how the server itself is."""

from __future__ import annotations

import time
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from glassloop.server.errors import APIError
from glassloop.server.openai import answers
from glassloop.server.service import Service
from glassloop.server.streaming import JSON


class ModelAnswer(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelsAnswer(BaseModel):
    object: Literal["list"]
    data: list[ModelAnswer]


class HealthAnswer(BaseModel):
    status: Literal["ok", "degraded"]
    reason: str | None  # why it is degraded
    model: str
    waiting: int
    running: int


def router(service: Service) -> APIRouter:
    routes = APIRouter(responses=answers.ERRORS)
    created = int(time.time())

    def described() -> ModelAnswer:
        return ModelAnswer(
            id=service.name,
            object="model",
            created=created,
            owned_by="glassloop",
            max_model_len=service.llm.config.context,
        )

    @routes.get("/v1/models", tags=["OpenAI"])
    async def models() -> ModelsAnswer:
        return ModelsAnswer(object="list", data=[described()])

    @routes.get("/v1/models/{model:path}", tags=["OpenAI"])
    async def model(model: str) -> ModelAnswer:
        service.check_model(model)
        return described()

    @routes.get("/health", tags=["operation"], response_model=HealthAnswer)
    async def health() -> Response:
        if service.draining:
            raise APIError(503, "the server is shutting down", code="shutting_down")
        load, store = service.llm.engine.load, service.shelf.store
        problem = None if store is None else store.problem
        return JSON(
            {
                "status": "degraded" if problem else "ok",
                "reason": problem,
                "model": service.name,
                "waiting": load.waiting,
                "running": load.running,
            }
        )

    @routes.get(
        "/metrics",
        tags=["operation"],
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return routes
