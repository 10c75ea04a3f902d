"""`GET /v1/models`: the one model that is served, by itself and with each of its adapters."""

from __future__ import annotations

import time
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from glassloop.server.errors import ERRORS
from glassloop.server.service import Service


class ModelAnswer(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int


class ModelsAnswer(BaseModel):
    object: Literal["list"]
    data: list[ModelAnswer]


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["OpenAI"], responses=ERRORS)
    created = int(time.time())

    def described(adapter: str | None = None) -> ModelAnswer:
        return ModelAnswer(
            id=service.name if adapter is None else f"{service.name}:{adapter}",
            object="model",
            created=created,
            owned_by="glassloop",
            root=service.name,
            parent=None if adapter is None else service.name,
            max_model_len=service.llm.config.context,
        )

    @routes.get("/v1/models")
    async def models() -> ModelsAnswer:
        return ModelsAnswer(object="list", data=[described(), *map(described, service.llm.adapters)])

    @routes.get("/v1/models/{model:path}")
    async def model(model: str) -> ModelAnswer:
        return described(service.adapter_of(model))

    return routes
