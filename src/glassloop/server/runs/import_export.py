"""Runs as `.glass` files, over HTTP: how they leave, and what is asked of one that comes in."""

from __future__ import annotations

import os
from copy import copy
from hashlib import blake2b

from starlette.responses import Response

from glassloop.engine.replay import check_run
from glassloop.errors import GlassloopError
from glassloop.server.errors import APIError
from glassloop.server.runs import shapes
from glassloop.server.runs.state import Live, Tree
from glassloop.server.service import Service
from glassloop.server.streaming import JSON
from glassloop.trace.file import from_bytes, to_bytes
from glassloop.trace.limits import Limits
from glassloop.trace.run import Run

MEDIA_TYPE = "application/vnd.glassloop.run"
_TYPES = ("application/octet-stream", MEDIA_TYPE)
_TOKENS = 1 << 15  # of the longest run that is taken, where the model's own context is shorter
_TOKEN_BYTES = 1 << 10  # of a token's record with the most alternatives
_MOST_MEMORY = 256 << 20  # bytes that imported runs may take in memory; a small file can be a large run


class Imported(shapes.Runs):
    imported_from: str  # the id that the run has in the file


def save(service: Service, run: Run) -> bytes:
    """Returns a file of one run. It names the model, and never its path on this machine."""
    sent = copy(run)
    if run.model == service.settings.model:  # in a store from before the server kept names alone
        sent.model = service.name
    return to_bytes([sent])


def check_type(given: str) -> None:
    """Refuses what a form or a script of another site can send without being asked for its origin."""
    kind = given.partition(";")[0].strip().lower()
    if kind not in _TYPES:
        raise APIError(
            415,
            f"content-type is {kind[:80] or 'absent'}; {_TYPES[0]} is expected",
            code="unsupported_media_type",
        )


class Importer:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._key = os.urandom(32)
        self._sizes: dict[str, int] = {}  # of imported runs in memory, oldest first
        # Any run of this server fits, and none can be larger than what it has to show anyway.
        context = service.llm.config.context
        columns = max(8 << 20, context * _TOKEN_BYTES)
        most = 2 * max(context, _TOKENS)  # a token of the prompt may have a record too
        self._limits = Limits(header=4 << 20, columns=columns, total=columns + (4 << 20), tokens=most)

    async def take(self, data: bytes) -> Response:
        """Puts the run of a file on the shelf. The same file again, or one of a run that is here, is answered
        with that run."""
        service = self._service
        run = await service.pools.long.run(self._load, data)
        own = run.id
        # Nobody outside can know the new id before it is told, and the same file has the same one.
        run.id = blake2b(data, digest_size=8, key=self._key).hexdigest()
        for id in (own, run.id):
            here = await service.shelf.find(id)
            if here is not None and _same(here.run, run):
                return self._answer(here, own, 200)
        run.samples = [run]
        live = Live(run, Tree())
        # Before it is added: a run that cannot be shown must not be in anybody's list.
        answer = await service.pools.short.run(self._answer, live, own, 201)
        if await service.shelf.find(run.id) is None:
            self._make_room(run)
            service.shelf.add(live)
            service.shelf.ended(live)
        return answer

    def _make_room(self, run: Run) -> None:
        """Forgets the imported runs that have been here longest, if there are too many for another one."""
        shelf = self._service.shelf
        here = {live.run.id: live for live in shelf.lives}
        self._sizes = {id: size for id, size in self._sizes.items() if id in here}
        self._sizes[run.id] = _size(run)
        over = sum(self._sizes.values()) - _MOST_MEMORY
        for id, size in list(self._sizes.items()):
            if over > 0 and id in here and here[id].request is None and not here[id].users:
                shelf.forget(here[id])
                del self._sizes[id]
                over -= size

    def _load(self, data: bytes) -> Run:
        service = self._service
        try:
            run = from_bytes(data, limits=self._limits, only_first=True)[0]
            # Of another model, or none, it can be looked at, and nothing is computed with it.
            if run.model_hash == service.llm.model_hash:
                check_run(service.llm, run)
        except GlassloopError as error:
            # A model that was loaded from a path is called by that here.
            told = str(error).replace(service.llm.name, service.name)
            raise APIError(400, told, code="bad_file") from None
        return run

    def _answer(self, live: Live, own: str, status: int) -> Response:
        return JSON({"runs": [shapes.summary(self._service, live)], "imported_from": own}, status)


def _size(run: Run) -> int:
    """About how many bytes a run takes in memory."""
    records = sum(500 + len(token.chosen.data) for token in (*run.prompt_tokens, *run.tokens))
    return records + 36 * len(run.prompt_ids) + 200 * len(run.beams) + 10_000


def _same(here: Run, run: Run) -> bool:
    return (here.prompt_ids, here.sampling, here.seed, here.salt) == (
        run.prompt_ids,
        run.sampling,
        run.seed,
        run.salt,
    ) and (here.tokens, here.tail, here.finish_reason) == (run.tokens, run.tail, run.finish_reason)
