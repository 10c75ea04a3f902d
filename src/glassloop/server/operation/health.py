"""`GET /health`, `/ready`, `/metrics`, `/api/replicas` and `/api/cluster`: the state of the server and of its
engines. `GET /api/info`: its model and options.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from fastapi import APIRouter
from starlette.responses import Response
from typing_extensions import TypedDict

from glassloop.decode.chain import known_stages
from glassloop.decode.diffusion import Diffusion
from glassloop.decode.sampling import Sampling
from glassloop.decode.stage import REGISTER, Stage
from glassloop.engine import lens
from glassloop.engine.language_model import LanguageModel
from glassloop.engine.protocol import UNKNOWN_CONTEXT, Handover, Statistics
from glassloop.server.http.errors import ERRORS, APIError, shutting_down
from glassloop.server.http.streaming import JSON, api_answer
from glassloop.server.service import Service


@api_answer
class HealthAnswer(TypedDict):
    status: Literal["ok", "degraded"]
    reason: str | None  # why it is degraded
    model: str
    waiting: int
    running: int


@api_answer
class ReadyAnswer(TypedDict):
    status: Literal["ready"]


class ReplicaShape(TypedDict):
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


class HandoverShape(TypedDict):
    time: float
    run: str
    tokens: int
    source: str
    target: str
    reason: str
    seconds: float


@api_answer
class ClusterShape(TypedDict):
    ready: bool
    problem: str | None
    replicas: list[ReplicaShape]
    handovers: list[HandoverShape]


class OptionShape(TypedDict):
    name: str
    kind: str
    default: Any
    help: str


class StageOptionShape(TypedDict):
    name: str
    expected: str
    required: bool
    default: Any


class OwnStageShape(TypedDict):
    """A stage that is not built in: of a plugin."""

    name: str
    kind: str
    plugin: str | None
    options: list[StageOptionShape]


class DiffusionInfo(TypedDict):
    available: bool  # whether the model has masked rows, or an adapter for them
    defaults: dict[str, Any]  # of every option


@api_answer
class Info(TypedDict):
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
            waiting=load["waiting"],
            running=load["running"],
        )

    @routes.get("/ready")
    async def ready() -> ReadyAnswer:
        """Whether a request that comes now would be computed: a status of 200, or else of 503."""
        if service.draining:
            raise shutting_down()
        if not service.llm.ready:
            raise _not_ready(service.llm)
        return ReadyAnswer(status="ready")

    @routes.get("/api/replicas")
    async def replicas() -> list[ReplicaShape]:
        """The engines behind this server: its own, or the replicas of a cluster."""
        return [_replica(each) for each in service.llm.statistics()]

    @routes.get("/api/cluster")
    async def cluster() -> ClusterShape:
        """The replicas with their load and share of cached prompt tokens, and the latest hand-overs: where
        keys are kept apart, those of the client's own runs."""
        llm, viewer = service.llm, service.runs.viewer
        return ClusterShape(
            ready=llm.ready,
            problem=llm.problem,
            replicas=[_replica(each) for each in llm.statistics()],
            handovers=[_handover(each) for each in llm.handovers() if viewer in (None, each.owner)],
        )

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


def _info(service: Service) -> Info:
    llm, config = service.llm, service.llm.config
    has_model = llm.upstream is None
    return Info(
        model=service.name,
        version=_version(),
        ops=llm.op_set,
        chat=llm.tokenizer.can_chat,
        upstream=llm.upstream,
        context=config.context if config.context < UNKNOWN_CONTEXT else None,
        vocabulary=config.vocab_size if has_model else None,
        layers=len(config.layers) if has_model else None,
        dim=config.dim if has_model else None,
        heads=config.heads if has_model else None,
        kv=_kv(llm.statistics()) if has_model else None,
        load=_load(llm),
        options=[
            OptionShape(
                name=field.name,
                kind=field.metadata["kind"],
                default=getattr(llm.default_sampling, field.name),
                help=field.metadata["help"],
            )
            for field in fields(Sampling)
            if field.name != "diffusion"  # below
        ],
        stages=known_stages(),
        own_stages=[_own_stage(stage) for stage in REGISTER.values() if not stage.built_in],
        lenses=lens.names_for(config) if has_model else [],
        drafter=llm.drafter,
        training=service.settings.training is not None,
        diffusion=DiffusionInfo(available=llm.can_diffuse, defaults=Diffusion().to_dict()),
    )


def _kv(replicas: Sequence[Statistics]) -> dict[str, int]:
    return {
        "memory": sum(each.kv_memory for each in replicas),
        "bytes": sum(each.kv_bytes for each in replicas),
        "page_bytes": max((each.page_bytes for each in replicas), default=0),
        "pages": sum(each.pages for each in replicas),
        "capacity": sum(each.pages_capacity for each in replicas),
    }


def _not_ready(llm: LanguageModel) -> APIError:
    return APIError(503, llm.problem or "the engine is not ready", code="not_ready")


def _load(llm: LanguageModel) -> dict[str, int]:
    """Returns how many requests wait, and how many branches are computed, in all replicas."""
    replicas = llm.statistics()
    return {
        "waiting": sum(each.waiting for each in replicas),
        "running": sum(each.running for each in replicas),
    }


def _replica(statistics: Statistics) -> ReplicaShape:
    return ReplicaShape(
        id=statistics.replica or "local",
        pid=statistics.pid,
        node=statistics.node,
        model=statistics.model,
        waiting=statistics.waiting,
        running=statistics.running,
        finished=statistics.finished,
        cached_tokens=statistics.cached_tokens,
        prompt_tokens=statistics.prompt_tokens,
        prompt_tokens_cached=statistics.prompt_tokens_cached,
        kv_bytes=statistics.kv_bytes,
        kv_memory=statistics.kv_memory,
    )


def _handover(handover: Handover) -> HandoverShape:
    return HandoverShape(
        time=handover.time,
        run=handover.run,
        tokens=handover.tokens,
        source=handover.source,
        target=handover.target,
        reason=handover.reason,
        seconds=handover.seconds,
    )


def _own_stage(stage: Stage) -> OwnStageShape:
    return OwnStageShape(
        name=stage.name,
        kind=stage.kind,
        plugin=None if stage.plugin is None else stage.plugin.file,
        options=[
            StageOptionShape(
                name=name,
                expected=parameter.expected,
                required=parameter.required,
                default=parameter.default,
            )
            for name, parameter in stage.parameters.items()
        ],
    )


def _version() -> str:
    try:
        return version("glassloop")
    except PackageNotFoundError:
        return "unknown"
