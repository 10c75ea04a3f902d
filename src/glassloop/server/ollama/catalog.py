"""`GET /api/tags`, `/api/ps` and `/api/version`, and `POST /api/show`: the models as Ollama's clients list
them."""

from __future__ import annotations

from asyncio import to_thread
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from math import prod
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response
from typing_extensions import TypedDict

from glassloop.decode.sampling import Sampling
from glassloop.errors import GlassloopError
from glassloop.server.http.bodies import BodyRoute
from glassloop.server.http.error_shapes import OllamaErrorAnswer
from glassloop.server.http.errors import APIError, errors_of
from glassloop.server.http.streaming import JSON, api_answer
from glassloop.server.ollama.bodies import ModelBody
from glassloop.server.service import Service

_API_VERSION = "0.12.6"  # the version of Ollama whose API this is; clients ask for a least one
_FOREVER = timedelta(days=365 * 100)  # until a model that is served is unloaded


class OllamaDetails(TypedDict):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(TypedDict):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaLoadedModel(OllamaModel):
    expires_at: str
    size_vram: int
    context_length: int


@api_answer
class OllamaModels(TypedDict):
    models: list[OllamaModel]


@api_answer
class OllamaLoaded(TypedDict):
    models: list[OllamaLoadedModel]


@api_answer
class OllamaShown(TypedDict):
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


@api_answer
class OllamaVersion(TypedDict):
    version: str


def router(service: Service) -> APIRouter:
    routes = APIRouter(
        route_class=BodyRoute, prefix="/api", tags=["Ollama"], responses=errors_of(OllamaErrorAnswer)
    )

    @routes.get("/tags", response_model=OllamaModels)
    async def tags() -> Response:
        return JSON(OllamaModels(models=await to_thread(_models, service)))

    @routes.get("/ps", response_model=OllamaLoaded)
    async def ps() -> Response:
        if service.state != "loaded":
            return JSON(OllamaLoaded(models=[]))
        more = {
            "expires_at": (datetime.now(UTC) + _FOREVER).isoformat(),
            "size_vram": 0,
            "context_length": service.llm.config.context,
        }
        models = await to_thread(_models, service)
        return JSON(OllamaLoaded(models=[OllamaLoadedModel(**each, **more) for each in models[:1]]))  # type: ignore[typeddict-item]

    @routes.get("/version", response_model=OllamaVersion)
    async def version() -> Response:
        return JSON(OllamaVersion(version=_API_VERSION))

    @routes.post("/show", response_model=OllamaShown, operation_id="ollama_show")
    async def show(body: ModelBody) -> Response:
        try:
            service.adapter_of(body.model or body.name)
        except APIError as error:
            field = "name" if body.model is None else "model"
            raise APIError(404, f"{field}: {error.message}") from None
        return JSON(await to_thread(_shown, service))

    return routes


def _models(service: Service) -> list[OllamaModel]:
    """Returns the model under each of its names, and with each of its adapters. Hashing its files may take
    seconds."""
    digest = ""
    with suppress(GlassloopError):  # it is not loaded, or its files are gone
        digest = service.llm.model_hash.partition("+")[0]
    names = [*service.settings.names, *(f"{service.name}:{adapter}" for adapter in service.llm.adapters)]
    size, changed = _file_of(service)
    return [
        OllamaModel(
            name=name, model=name, modified_at=changed, size=size, digest=digest, details=_details(service)
        )
        for name in names
    ]


def _shown(service: Service) -> OllamaShown:
    config, tokenizer = service.llm.config, service.llm.tokenizer
    template = tokenizer.chat_template
    defaults, plain = service.llm.default_sampling.to_dict(), Sampling().to_dict()
    changed = [f"{name} {value}" for name, value in defaults.items() if value != plain.get(name)]
    capabilities = ["completion"]
    if tokenizer.can_chat:
        capabilities.append("tools")
    if template is not None and template.has_variable("enable_thinking"):
        capabilities.append("thinking")
    return OllamaShown(
        parameters="\n".join(changed),
        template="" if template is None else template.source,
        details=_details(service),
        model_info={
            "general.architecture": config.family,
            "general.parameter_count": _parameters(service),
            f"{config.family}.context_length": config.context,
            f"{config.family}.embedding_length": config.dim,
            f"{config.family}.block_count": len(config.layers),
            f"{config.family}.vocab_size": config.vocab_size,
        },
        capabilities=capabilities,
        modified_at=_file_of(service)[1],
    )


def _details(service: Service) -> OllamaDetails:
    family = service.llm.config.family
    count = _parameters(service)
    size = f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"
    is_gguf = service.settings.model.endswith(".gguf") or (_path(service) or Path()).suffix == ".gguf"
    return OllamaDetails(
        parent_model="",
        format="gguf" if is_gguf else "safetensors",
        family=family,
        families=[family],
        parameter_size=size,
        quantization_level="",  # a file may have several, one for each weight
    )


def _parameters(service: Service) -> int:
    return sum(prod(shape) for shape in service.llm.config.shapes().values())


def _path(service: Service) -> Path | None:
    """Returns where the model's file is, None if that is not on this machine, or not known."""
    path = None
    with suppress(GlassloopError):  # it is not loaded
        path = getattr(service.llm, "path", None)
    return Path(path) if isinstance(path, (str, Path)) else None


def _file_of(service: Service) -> tuple[int, str]:
    """Returns the size of the model's files and when they were written; 0 and 1970 if that is not known."""
    path = _path(service)
    with suppress(OSError):
        if path is not None:
            files = [path] if path.is_file() else list(path.glob("*.safetensors"))
            stats = [each.stat() for each in files]
            newest = max((each.st_mtime for each in stats), default=0.0)
            return sum(each.st_size for each in stats), datetime.fromtimestamp(newest, UTC).isoformat()
    return 0, datetime.fromtimestamp(0, UTC).isoformat()
