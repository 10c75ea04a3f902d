"""`GET /health` and `GET /metrics`: the state of the server. `GET /api/info`: its model and options."""

from __future__ import annotations

from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from glassloop.decode.chain import known_stages
from glassloop.decode.sampling import Sampling
from glassloop.decode.stage import REGISTER, Stage
from glassloop.engine import lens
from glassloop.server.errors import ERRORS, shutting_down
from glassloop.server.service import Service
from glassloop.server.streaming import JSON


class HealthAnswer(BaseModel):
    status: Literal["ok", "degraded"]
    reason: str | None  # why it is degraded
    model: str
    waiting: int
    running: int


class OptionShape(BaseModel):
    name: str
    kind: str
    default: Any
    help: str


class StageOptionShape(BaseModel):
    name: str
    expected: str
    required: bool
    default: Any


class OwnStageShape(BaseModel):
    """A stage that is not built in: of a plugin."""

    name: str
    kind: str
    plugin: str | None
    options: list[StageOptionShape]


class Info(BaseModel):
    model: str
    version: str
    ops: str
    chat: bool
    context: int
    vocabulary: int
    layers: int
    dim: int
    heads: int
    kv: dict[str, int]
    load: dict[str, int]
    options: list[OptionShape]
    stages: list[str]
    own_stages: list[OwnStageShape]
    lenses: list[str]


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["operation"], responses=ERRORS)

    @routes.get("/health")
    async def health() -> HealthAnswer:
        if service.draining:
            raise shutting_down()
        load, storage = service.llm.engine.load, service.runs.storage
        problem = None if storage is None else storage.problem
        return HealthAnswer(
            status="degraded" if problem else "ok",
            reason=problem,
            model=service.name,
            waiting=load.waiting,
            running=load.running,
        )

    @routes.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @routes.get("/api/info", response_model=Info)
    async def info() -> Response:
        return JSON(_info(service))

    return routes


def _info(service: Service) -> dict[str, Any]:
    llm, config = service.llm, service.llm.config
    tree = llm.engine.loop.tree
    return {
        "model": service.name,
        "version": _version(),
        "ops": llm.op_set,
        "chat": llm.tokenizer.chat_template is not None,
        "context": config.context,
        "vocabulary": config.vocab_size,
        "layers": len(config.layers),
        "dim": config.dim,
        "heads": config.heads,
        "kv": {
            "memory": tree.memory,
            "page_bytes": tree.page_bytes,
            "pages": tree.node_count,
            "capacity": tree.capacity,
        },
        "load": llm.engine.load._asdict(),
        "options": [
            {
                "name": field.name,
                "kind": field.metadata["kind"],
                "default": getattr(llm.default_sampling, field.name),
                "help": field.metadata["help"],
            }
            for field in fields(Sampling)
        ],
        "stages": known_stages(),
        "own_stages": [_own_stage(stage) for stage in REGISTER.values() if not stage.built_in],
        "lenses": list(lens.NAMES),
    }


def _own_stage(stage: Stage) -> dict[str, Any]:
    return {
        "name": stage.name,
        "kind": stage.kind,
        "plugin": None if stage.plugin is None else stage.plugin.file,
        "options": [
            {
                "name": name,
                "expected": parameter.expected,
                "required": parameter.required,
                "default": parameter.default,
            }
            for name, parameter in stage.parameters.items()
        ],
    }


def _version() -> str:
    try:
        return version("glassloop")
    except PackageNotFoundError:
        return "unknown"
