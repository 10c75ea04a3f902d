"""`GET /v1/models`: the model that is served, under each of its names and with each of its adapters."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from glassloop.server.http.errors import ERRORS
from glassloop.server.service import LoadState, Service


class ModelAnswer(BaseModel):
    """A model, with the names that OpenAI's clients read and those that Anthropic's read."""

    id: str
    object: Literal["model"]
    created: int
    type: Literal["model"]
    display_name: str
    created_at: str
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    state: LoadState


class ModelsAnswer(BaseModel):
    object: Literal["list"]
    data: list[ModelAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["OpenAI"], responses=ERRORS)
    created = int(time.time())

    def described(id: str, adapter: str | None = None) -> ModelAnswer:
        return ModelAnswer(
            id=id,
            object="model",
            created=created,
            type="model",
            display_name=id,
            created_at=datetime.fromtimestamp(created, UTC).isoformat(),
            owned_by="glassloop",
            root=service.name,
            parent=None if adapter is None else service.name,
            max_model_len=service.llm.config.context,
            state=service.state,
        )

    @routes.get("/v1/models")
    async def models() -> ModelsAnswer:
        listed = [described(name) for name in service.settings.names]
        adapted = [described(f"{service.name}:{adapter}", adapter) for adapter in service.llm.adapters]
        models = [*listed, *adapted]
        ends = {"first_id": models[0].id, "last_id": models[-1].id}
        return ModelsAnswer(object="list", data=models, has_more=False, **ends)

    @routes.get("/v1/models/{model:path}")
    async def model(model: str) -> ModelAnswer:
        return described(model or service.name, service.adapter_of(model))

    return routes
