"""`/api/runs/{id}/export`, `…/page.html` and `…/receipt`, and `/api/runs/import`: runs as `.glass` files, as
pages and as receipts over HTTP."""

from __future__ import annotations

import os
from collections import Counter
from copy import copy
from functools import partial
from hashlib import blake2b
from typing import Annotated, NotRequired

from fastapi import APIRouter, Query, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from glassloop.decode.explain import Explanation
from glassloop.engine.compatibility import check_run
from glassloop.engine.deadline import Deadline
from glassloop.engine.replay import NoSuchToken
from glassloop.errors import GlassloopError
from glassloop.record.format.file_limits import FileLimits
from glassloop.record.format.glass_file import from_bytes, to_bytes
from glassloop.record.receipt import receipt_of
from glassloop.record.run import Run
from glassloop.record.signing import SigningKey
from glassloop.record.store.listing import Listing
from glassloop.record.views.page import MOST_RUNS, page
from glassloop.server.http.clients import client_of, owner_of_runs
from glassloop.server.http.errors import ERRORS, APIError
from glassloop.server.http.streaming import JSON, api_answer
from glassloop.server.runs.state import RunState, TreeState
from glassloop.server.service import Service
from glassloop.server.studio.runs import Id
from glassloop.server.studio.summaries import Runs, summary

_MEDIA_TYPE = "application/vnd.glassloop.run"
_HTML = "text/html"
_TYPES = ("application/octet-stream", _MEDIA_TYPE)
_BINARY = {"type": "string", "format": "binary"}
_TOKENS = 1 << 15  # of the longest run that is taken, where the model's own context is shorter
_TOKEN_BYTES = 1 << 10  # of a token's record with the most alternatives
_MOST_EXPLAINED = 256  # tokens in one page
_MOST_MEMORY = 256 << 20  # bytes that imported runs may take in memory; a small file can be a large run


@api_answer
class Imported(Runs):
    imported_from: str  # the id that the run has in the file


@api_answer
class ReceiptAnswer(TypedDict):
    """A receipt as `glassloop verify` reads it; docs/receipts.md describes the fields."""

    glassloop_receipt: int
    run: str
    created: float
    model: str
    model_hash: str
    adapters: dict[str, str]
    arithmetic: str
    salt: str
    prompt_tokens: int
    prompt: str
    options: str
    answer: str
    text: str
    numbers: str
    tags: list[str]
    key: str | None
    signature: str | None
    seal: str
    content: NotRequired[str]


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/api", tags=["runs"], responses=ERRORS)
    importer = _Importer(service)
    key_file = service.settings.receipt_key
    key = None if key_file is None else SigningKey(key_file)

    @routes.get("/runs/{id}/export", response_class=Response, responses={200: {"content": {_MEDIA_TYPE: {}}}})
    async def export(id: Id) -> Response:
        run = _sent(service, await service.runs.get(id))
        body = await service.pools.rendering.run(to_bytes, [run])
        return _file(body, _MEDIA_TYPE, f"{run.id}.glass")

    @routes.get("/runs/{id}/receipt", response_model=ReceiptAnswer)
    async def receipt(id: Id, with_text: bool = False) -> Response:
        """The receipt of a run: salted digests of its prompt, options, tokens and numbers, signed if the
        server has a key. `with_text` adds the run itself, so that nothing else is needed to verify it."""
        run = _sent(service, await service.runs.get(id))

        def build() -> Response:
            receipt = receipt_of(run)
            if key is not None:
                receipt = receipt.signed(key)
            return JSON(receipt.to_dict(with_text=with_text))

        return await service.pools.rendering.run(build)

    @routes.get("/runs/{id}/page.html", response_class=Response, responses={200: {"content": {_HTML: {}}}})
    async def page_html(
        request: Request,
        id: Id,
        explain: Annotated[str | None, Query(pattern=r"^(all|\d{1,7}(,\d{1,7})*)$", max_length=4096)] = None,
        tree: bool = True,
    ) -> Response:
        """A run as one HTML page that opens anywhere, without a network. `explain` adds the explanations of
        these tokens, counted from 0, or of `all`; without `tree` its forks and samples are left out."""
        state = await service.runs.get(id)
        run, others = _sent(service, state), []
        if tree:
            listing = Listing(MOST_RUNS, state.tree.id, "", None)
            for each in (await service.runs.newest(listing, client_of(request), brief=True))[0]:
                other = each if isinstance(each, RunState) else await service.runs.find(each.entry.id)
                if other is not None and other.run.id != run.id and _has_ended(other):
                    others.append(_sent(service, other))
        places = _explained(explain, run)

        def build(deadline: Deadline) -> bytes:
            explanations: dict[int, Explanation] = {}
            for at in places:
                try:
                    explanations[at] = service.llm.explain(state.run, at, deadline=deadline)
                except NoSuchToken as error:
                    raise APIError(400, str(error), param="explain") from None
            return page(run, explanations, others=others[::-1]).encode()

        body = await service.threads.read_model(request, build, service.pools.reading)
        return _file(body, _HTML, f"{run.id}.html")

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
        return await service.bodies.receive(request, partial(importer.take, client_of(request)))

    return routes


def _has_ended(state: RunState) -> bool:
    return state.request is None and not state.is_elsewhere


def _sent(service: Service, state: RunState) -> Run:
    """Returns a run as it is sent in a file. Raises while it is computed."""
    if not _has_ended(state):
        message = f"run {state.run.id} is {state.status}; wait for its end or stop it"
        raise APIError(409, message, code="still_running")
    run = copy(state.run)
    run.model = service.public_name(run.model)  # the terminal records the path of a model
    return run


def _explained(query: str | None, run: Run) -> list[int]:
    """Returns the places of the tokens whose explanations a page is to have."""
    if query is None:
        return []
    places = list(range(len(run.tokens))) if query == "all" else sorted(set(map(int, query.split(","))))
    if len(places) > _MOST_EXPLAINED:
        message = f"explain names {len(places)} tokens; at most {_MOST_EXPLAINED} are expected"
        raise APIError(400, message, param="explain")
    return places


def _file(body: bytes, kind: str, name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(body, media_type=kind, headers=headers)


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
        self._limits = FileLimits(header=4 << 20, columns=columns, total=columns + (4 << 20), tokens=most)

    async def take(self, client: str, data: bytes) -> Response:
        """Adds the run of a file to the index. The same file again, or one of a run that is here, is answered
        with that run."""
        service = self._service
        run = await service.pools.long.run_for(client, self._load, data)
        original = run.id
        # A client cannot know the new id before it is told, and the same file has the same one: for each
        # owner, where they are kept apart.
        digest = blake2b((service.runs.viewer or "").encode(), digest_size=8, key=self._key)
        digest.update(data)
        run.id = digest.hexdigest()
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
        """Forgets imported runs, if there are too many for another one: those that have been here longest of
        the owner that has the most."""
        index = self._service.runs
        here = {state.run.id: state for state in index.states}
        self._sizes = {id: size for id, size in self._sizes.items() if id in here}
        held = Counter({owner_of_runs(): _size(run)})  # bytes of each owner
        for id, size in self._sizes.items():
            held[here[id].owner] += size
        over = held.total() - _MOST_MEMORY
        idle = [here[id] for id in self._sizes if here[id].request is None and not here[id].users]
        while over > 0 and idle:
            oldest = max(idle, key=lambda state: held[state.owner])  # the first of those with the most
            idle.remove(oldest)
            index.forget(oldest)
            size = self._sizes.pop(oldest.run.id)
            held[oldest.owner] -= size
            over -= size
        self._sizes[run.id] = _size(run)

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
        return JSON(Imported(runs=[summary(self._service, state)], imported_from=original), status)


def _size(run: Run) -> int:
    """Returns about how many bytes a run takes in memory."""
    records = sum(500 + len(token.chosen.data) for token in (*run.prompt_tokens, *run.tokens))
    return records + 36 * len(run.prompt_ids) + 200 * len(run.beams) + 10_000
