"""`/api/runs/{id}/export` and `/api/runs/import`: runs as `.glass` files over HTTP."""

from __future__ import annotations

import os
from copy import copy
from hashlib import blake2b

from fastapi import APIRouter, Request
from starlette.responses import Response

from glassloop.engine.replay import check_run
from glassloop.errors import GlassloopError
from glassloop.server.errors import ERRORS, APIError
from glassloop.server.runs import shapes
from glassloop.server.runs.routes import Id
from glassloop.server.runs.state import RunState, TreeState
from glassloop.server.service import Service
from glassloop.server.streaming import JSON
from glassloop.trace.file import from_bytes, to_bytes
from glassloop.trace.limits import Limits
from glassloop.trace.run import Run

_MEDIA_TYPE = "application/vnd.glassloop.run"
_TYPES = ("application/octet-stream", _MEDIA_TYPE)
_BINARY = {"type": "string", "format": "binary"}
_TOKENS = 1 << 15  # of the longest run that is taken, where the model's own context is shorter
_TOKEN_BYTES = 1 << 10  # of a token's record with the most alternatives
_MOST_MEMORY = 256 << 20  # bytes that imported runs may take in memory; a small file can be a large run


class Imported(shapes.Runs):
    imported_from: str  # the id that the run has in the file


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/api", tags=["runs"], responses=ERRORS)
    importer = _Importer(service)

    @routes.get("/runs/{id}/export", response_class=Response, responses={200: {"content": {_MEDIA_TYPE: {}}}})
    async def export(id: Id) -> Response:
        state = await service.runs.get(id)
        if state.request is not None or state.is_elsewhere:
            message = f"run {id} is {state.status}; wait for its end or stop it"
            raise APIError(409, message, code="still_running")
        sent = copy(state.run)
        sent.model = service.public_name(sent.model)  # the terminal records the path of a model
        body = await service.pools.rendering.run(to_bytes, [sent])
        name = f'attachment; filename="{state.run.id}.glass"'
        return Response(body, media_type=_MEDIA_TYPE, headers={"content-disposition": name})

    @routes.post(
        "/runs/import",
        response_model=Imported,
        status_code=201,
        responses={200: {"model": Imported, "description": "It is here already."}},
        openapi_extra={"requestBody": {"content": {"application/octet-stream": {"schema": _BINARY}}}},
    )
    async def import_(request: Request) -> Response:
        """Take in the first run of a `.glass` file, under an id of the server's choice."""
        _check_type(request.headers.get("content-type", ""))
        return await service.bodies.receive(request, importer.take)

    return routes


def _check_type(content_type: str) -> None:
    """Refuses types that a form or a script of another site can send without a CORS preflight."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in _TYPES:
        message = f"content-type is {kind[:80] or 'absent'}; {_TYPES[0]} is expected"
        raise APIError(415, message, code="unsupported_media_type")


class _Importer:
    def __init__(self, service: Service) -> None:
        self._service = service
        storage = service.runs.storage
        self._key = os.urandom(32) if storage is None else storage.key
        self._sizes: dict[str, int] = {}  # of imported runs in memory, oldest first
        # Any run of this server fits, and none can be larger than what it has to show anyway.
        context = service.llm.config.context
        columns = max(8 << 20, context * _TOKEN_BYTES)
        most = 2 * max(context, _TOKENS)  # a token of the prompt may have a record too
        self._limits = Limits(header=4 << 20, columns=columns, total=columns + (4 << 20), tokens=most)

    async def take(self, data: bytes) -> Response:
        """Adds the run of a file to the index. The same file again, or one of a run that is here, is answered
        with that run."""
        service = self._service
        run = await service.pools.long.run(self._load, data)
        original = run.id
        # A client cannot know the new id before it is told, and the same file has the same one.
        run.id = blake2b(data, digest_size=8, key=self._key).hexdigest()
        for id in (original, run.id):
            here = await service.runs.find(id)
            if here is not None and here.run.same_record(run):
                return self._answer(here, original, 200)
        run.samples = [run]
        state = RunState(run, TreeState())
        # Before it is added: a run that cannot be shown must not be in the list of runs.
        answer = await service.pools.short.run(self._answer, state, original, 201)
        if await service.runs.find(run.id) is None:
            self._make_room(run)
            await service.runs.add_ended([state])
        return answer

    def _make_room(self, run: Run) -> None:
        """Forgets the imported runs that have been here longest, if there are too many for another one."""
        index = self._service.runs
        here = {state.run.id: state for state in index.states}
        self._sizes = {id: size for id, size in self._sizes.items() if id in here}
        self._sizes[run.id] = _size(run)
        over = sum(self._sizes.values()) - _MOST_MEMORY
        for id, size in list(self._sizes.items()):
            if over > 0 and id in here and here[id].request is None and not here[id].users:
                index.forget(here[id])
                del self._sizes[id]
                over -= size

    def _load(self, data: bytes) -> Run:
        llm = self._service.llm
        try:
            run = from_bytes(data, limits=self._limits, only_first=True)[0]
            # A run of another model can be looked at, and nothing is computed with it.
            if run.model_hash == llm.model_hash:
                check_run(llm, run)
        except GlassloopError as error:
            raise APIError(400, str(error), code="bad_file") from None
        return run

    def _answer(self, state: RunState, original: str, status: int) -> Response:
        return JSON({"runs": [shapes.summary(self._service, state)], "imported_from": original}, status)


def _size(run: Run) -> int:
    """Returns about how many bytes a run takes in memory."""
    records = sum(500 + len(token.chosen.data) for token in (*run.prompt_tokens, *run.tokens))
    return records + 36 * len(run.prompt_ids) + 200 * len(run.beams) + 10_000
