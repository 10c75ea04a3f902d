"""`GET /health`, `/ready`, `/metrics`, `/api/replicas` and `/api/cluster`: the state of the server and of its
engines. `GET /api/info`: its model and options.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from glassloop.decode.chain import known_stages
from glassloop.decode.diffusion import Diffusion
from glassloop.decode.sampling import Sampling
from glassloop.decode.stage import REGISTER, Stage
from glassloop.engine import lens
from glassloop.engine.protocol import UNKNOWN_CONTEXT, Engine, Statistics
from glassloop.model.config import ModelConfig
from glassloop.server.http.errors import ERRORS, APIError, shutting_down
from glassloop.server.http.streaming import JSON
from glassloop.server.service import Service


class HealthAnswer(BaseModel):
    status: Literal["ok", "degraded"]
    reason: str | None  # why it is degraded
    model: str
    waiting: int
    running: int


class ReadyAnswer(BaseModel):
    status: Literal["ready"]


class ReplicaShape(BaseModel):
    id: str
    pid: int
    node: str
    model: str
    waiting: int
    running: int
    finished: int
    cached_tokens: int  # in its KV cache now
    prompt_tokens: int  # of finished requests
    prompt_tokens_cached: int  # of these: they were in its KV cache
    kv_bytes: int
    kv_memory: int


class HandoverShape(BaseModel):
    time: float
    run: str
    tokens: int
    source: str
    target: str
    reason: str
    seconds: float


class ClusterShape(BaseModel):
    ready: bool
    problem: str | None
    replicas: list[ReplicaShape]
    handovers: list[HandoverShape]


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


class DiffusionInfo(BaseModel):
    available: bool  # whether the model has masked rows, or an adapter for them
    defaults: dict[str, Any]  # of every option


class Info(BaseModel):
    model: str
    version: str
    ops: str
    chat: bool
    upstream: str | None  # the other engine that computes; what is null then is not known
    context: int | None
    vocabulary: int | None
    layers: int | None
    dim: int | None
    heads: int | None
    kv: dict[str, int] | None
    load: dict[str, int]
    options: list[OptionShape]
    stages: list[str]
    own_stages: list[OwnStageShape]
    lenses: list[str]
    drafter: str | None  # what makes drafts; null if nothing does or it is not known
    training: bool  # whether it shows training runs
    diffusion: DiffusionInfo


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["operation"], responses=ERRORS)

    @routes.get("/health")
    async def health() -> HealthAnswer:
        if service.draining:
            raise shutting_down()
        llm, storage = service.llm, service.runs.storage
        if not llm.ready:
            raise _not_ready(llm)
        problems = [llm.problem, None if storage is None else storage.problem]
        problem = "; ".join(filter(None, problems)) or None
        load = _load(llm)
        return HealthAnswer(
            status="degraded" if problem else "ok",
            reason=problem,
            model=service.name,
            **load,
        )

    @routes.get("/ready")
    async def ready() -> ReadyAnswer:
        """Whether a request that comes now would be computed: a status of 200, or else of 503."""
        if service.draining:
            raise shutting_down()
        if not service.llm.ready:
            raise _not_ready(service.llm)
        return ReadyAnswer(status="ready")

    @routes.get("/api/replicas", response_model=list[ReplicaShape])
    async def replicas() -> list[dict[str, Any]]:
        """The engines behind this server: its own, or the replicas of a cluster."""
        return [_replica(each) for each in service.llm.statistics()]

    @routes.get("/api/cluster", response_model=ClusterShape)
    async def cluster() -> dict[str, Any]:
        """The replicas with their load and share of cached prompt tokens, and the latest hand-overs: where
        keys are kept apart, those of the client's own runs."""
        llm, viewer = service.llm, service.runs.viewer
        return {
            "ready": llm.ready,
            "problem": llm.problem,
            "replicas": [_replica(each) for each in llm.statistics()],
            "handovers": [each.to_dict() for each in llm.handovers() if viewer in (None, each.owner)],
        }

    @routes.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        text = await service.pools.short.run(service.metrics.text)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @routes.get("/api/info", response_model=Info)
    async def info() -> Response:
        return JSON(_info(service))

    return routes


def _info(service: Service) -> dict[str, Any]:
    llm, config = service.llm, service.llm.config
    return {
        "model": service.name,
        "version": _version(),
        "ops": llm.op_set,
        "chat": llm.tokenizer.can_chat,
        "upstream": llm.upstream,
        "context": config.context if config.context < UNKNOWN_CONTEXT else None,
        **(_sizes(config, llm.statistics()) if llm.upstream is None else dict.fromkeys(_SIZES)),
        "load": _load(llm),
        "options": [
            {
                "name": field.name,
                "kind": field.metadata["kind"],
                "default": getattr(llm.default_sampling, field.name),
                "help": field.metadata["help"],
            }
            for field in fields(Sampling)
            if field.name != "diffusion"  # below
        ],
        "stages": known_stages(),
        "own_stages": [_own_stage(stage) for stage in REGISTER.values() if not stage.built_in],
        "lenses": list(lens.NAMES) if llm.upstream is None else [],
        "drafter": llm.drafter,
        "training": service.settings.training is not None,
        "diffusion": {"available": llm.can_diffuse, "defaults": Diffusion().to_dict()},
    }


_SIZES = ("vocabulary", "layers", "dim", "heads", "kv")


def _sizes(config: ModelConfig, replicas: Sequence[Statistics]) -> dict[str, Any]:
    return {
        "vocabulary": config.vocab_size,
        "layers": len(config.layers),
        "dim": config.dim,
        "heads": config.heads,
        "kv": {
            "memory": sum(each.kv_memory for each in replicas),
            "bytes": sum(each.kv_bytes for each in replicas),
            "page_bytes": max((each.page_bytes for each in replicas), default=0),
            "pages": sum(each.pages for each in replicas),
            "capacity": sum(each.pages_capacity for each in replicas),
        },
    }


def _not_ready(llm: Engine) -> APIError:
    return APIError(503, llm.problem or "the engine is not ready", code="not_ready")


def _load(llm: Engine) -> dict[str, int]:
    """Returns how many requests wait, and how many branches are computed, in all replicas."""
    replicas = llm.statistics()
    return {
        "waiting": sum(each.waiting for each in replicas),
        "running": sum(each.running for each in replicas),
    }


def _replica(statistics: Statistics) -> dict[str, Any]:
    own = statistics.to_dict() | {"id": statistics.replica or "local"}
    return {name: own[name] for name in ReplicaShape.model_fields}


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
