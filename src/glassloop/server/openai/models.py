"""`GET /v1/models`: the one model that is served."""

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
    described = ModelAnswer(
        id=service.name,
        object="model",
        created=int(time.time()),
        owned_by="glassloop",
        root=service.name,
        parent=None,
        max_model_len=service.llm.config.context,
    )

    @routes.get("/v1/models")
    async def models() -> ModelsAnswer:
        return ModelsAnswer(object="list", data=[described])

    @routes.get("/v1/models/{model:path}")
    async def model(model: str) -> ModelAnswer:
        service.check_model(model)
        return described

    return routes
