"""`/api/…` for those who look closer: why a token, the lenses, files, and what the server can do."""

from __future__ import annotations

from dataclasses import MISSING, fields
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from glassloop.decode.chain import DEFAULT_ORDER
from glassloop.decode.sampling import Sampling
from glassloop.engine import lens as lenses
from glassloop.engine.deadline import Deadline
from glassloop.engine.replay import Luck, Part
from glassloop.server import answers, glass
from glassloop.server.bodies import BodyRoute
from glassloop.server.errors import APIError
from glassloop.server.explaining import Explainer, ExplanationShape, read_overrides
from glassloop.server.service import Service
from glassloop.server.wire import JSON

Id = Annotated[str, Path(max_length=64)]
_NOT_OPTIONS = ("luck", "of")
_BINARY = {"type": "string", "format": "binary"}


class OptionShape(BaseModel):
    name: str
    kind: str
    default: Any
    help: str


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
    lenses: list[str]


def router(service: Service) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, prefix="/api", tags=["runs"], responses=answers.ERRORS)
    explainer = Explainer(service)
    importer = glass.Importer(service)

    @routes.get("/info", response_model=Info, tags=["operation"])
    async def info() -> Response:
        return JSON(_info(service))

    @routes.get("/runs/{id}/explain/{index}", response_model=ExplanationShape)
    async def explain(
        id: Id,
        index: Annotated[int, Path(ge=0, le=1 << 31)],
        request: Request,
        of: Annotated[Part, Query()] = "answer",
        luck: Annotated[Luck, Query()] = "same",
    ) -> Response:
        """Why a token of the answer or of the prompt. Any field of Sampling in the query is a what-if."""
        run = (await service.shelf.get(id)).run
        query = {name: text for name, text in request.query_params.items() if name not in _NOT_OPTIONS}
        overrides = read_overrides(query)
        return await service.reading(
            request,
            lambda deadline: JSON(explainer.explain(run, index, of, luck, overrides, deadline)),
        )

    @routes.get("/runs/{id}/lens/{name}", response_model=dict[str, Any])
    async def lens(
        request: Request,
        id: Id,
        name: Annotated[str, Path(max_length=64)],
        token: Annotated[int, Query(ge=-(1 << 31), le=1 << 31)] = -1,
        layer: Annotated[int | None, Query(ge=1, le=1 << 31)] = None,
        count: Annotated[int, Query(ge=1, le=lenses.MOST)] = 10,
    ) -> Response:
        """`attention`, `layers` or `neighbours` of a token, by its place in the prompt and the answer."""
        run, lens = (await service.shelf.get(id)).run, service.llm.lens
        if name not in lenses.NAMES:
            known = ", ".join(lenses.NAMES)
            raise APIError(404, f"there is no lens {name!r}; one of {known} is expected", code="no_such_lens")

        def look(deadline: Deadline) -> Response:
            if name == "attention":
                return JSON(lens.attention(run, token, deadline=deadline).to_dict(layer))
            if name == "layers":
                return JSON(lens.layers(run, token, count, deadline=deadline).to_dict())
            return JSON(lens.neighbours_in(run, token, count, deadline=deadline).to_dict())

        return await service.reading(request, look)

    @routes.get(
        "/runs/{id}/export",
        response_class=Response,
        responses={200: {"content": {glass.MEDIA_TYPE: {}}}},
    )
    async def export(id: Id) -> Response:
        live = await service.shelf.get(id)
        if live.request is not None:
            raise APIError(
                409, f"run {id} is {live.status}; wait for its end or stop it", code="still_running"
            )
        body = await service.pools.showing.run(glass.save, service, live.run)
        name = f'attachment; filename="{live.run.id}.glass"'
        return Response(body, media_type=glass.MEDIA_TYPE, headers={"content-disposition": name})

    @routes.post(
        "/runs/import",
        response_model=glass.Imported,
        status_code=201,
        responses={200: {"model": glass.Imported, "description": "It is here already."}},
        openapi_extra={"requestBody": {"content": {"application/octet-stream": {"schema": _BINARY}}}},
    )
    async def import_(request: Request) -> Response:
        """Take in the first run of a `.glass` file, under an id of the server's choice."""
        glass.check_type(request.headers.get("content-type", ""))
        answer: Response = await service.bodies.receive(request, importer.take)
        return answer

    return routes


def _info(service: Service) -> dict[str, Any]:
    llm, config = service.llm, service.llm.config
    tree, load = llm.engine.loop.tree, llm.engine.load
    instructions = getattr(llm.transformer.ops, "instructions", None)
    return {
        "model": service.name,
        "version": _version(),
        "ops": f"{llm.ops}/{instructions}" if instructions else llm.ops,
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
        "load": load._asdict(),
        "options": [
            {
                "name": field.name,
                "kind": field.metadata["kind"],
                "default": {} if field.default is MISSING else field.default,
                "help": field.metadata["help"],
            }
            for field in fields(Sampling)
        ],
        "stages": list(DEFAULT_ORDER),
        "lenses": list(lenses.NAMES),
    }


def _version() -> str:
    try:
        return version("glassloop")
    except PackageNotFoundError:
        return "unknown"
