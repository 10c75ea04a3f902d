"""Several models behind one address: a request goes to the model that its body names, else to the first one.
`/models/NAME/…` is all that a server with this model alone would answer, the studio and metrics included.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from pydantic_core import from_json
from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glassloop.engine.owner import owned_by
from glassloop.server.app import make_app
from glassloop.server.http.access import AccessControl
from glassloop.server.http.bodies import LONG_BODY, Bodies, check_size
from glassloop.server.http.clients import client_of
from glassloop.server.http.errors import APIError
from glassloop.server.http.streaming import JSON, ClientGone
from glassloop.server.service import Service

_PREFIX = "/models/"
_LISTS = {"/v1/models": "data", "/api/tags": "models", "/api/ps": "models"}  # with the field of the models
# Of Ollama's API: their bodies name a model.
_OLLAMA = ("/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/show")
_LATEST = ":latest"  # what Ollama's clients add to a name without a tag
_RUN = re.compile(r"/api/runs/([0-9a-f]{1,64})(/|$)")
_TREE = re.compile(r"/api/trees/([0-9a-f]{1,64})(/|$)")


class ManyModels:
    """An ASGI application that passes each request to the application of one model."""

    def __init__(self, services: Sequence[Service]) -> None:
        self._services = list(services)
        self._apps: dict[str, ASGIApp] = {service.name: make_app(service) for service in services}
        self._first = services[0].name
        self._names = {name: service.name for service in services for name in service.settings.names}
        for service in services:
            service.neighbours = tuple(name for name in self._names if self._names[name] != service.name)
        self._access = AccessControl(self._apps[self._first], services[0])
        self._bodies = Bodies(services[0].settings.most_body, services[0].pools)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._apps[self._first](scope, receive, send)
            return
        path: str = scope["path"]
        if path.startswith(_PREFIX):
            named, rest = self._split(path.removeprefix(_PREFIX))
            inner = {**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode(), "root_path": ""}
            await self._pass(named or self._first, scope if named is None else inner, receive, send)
            return
        if path in _LISTS and scope["method"] in ("GET", "HEAD"):
            await self._list(scope, receive, send)
            return
        name = self._of_path(scope)
        if name is None and scope["method"] == "POST" and (path.startswith("/v1/") or path in _OLLAMA):
            if not self._access.admits(scope):  # the first application answers, without reading the body
                await self._apps[self._first](scope, receive, send)
                return
            try:
                name, receive = await self._model_of(Request(scope, receive))
                if name and self._named(name) is None:
                    self._services[0].check_model(name)
            except (APIError, ClientGone) as error:
                await self._refuse(error, scope, receive, send)
                return
        # A model that is not here is refused by the first application, which checks the client's key before.
        await self._pass(self._named(name) or self._first, scope, receive, send)

    async def _refuse(self, error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers with an error, which is counted and logged as any answer."""
        await AccessControl(_refusal(error), self._services[0])(scope, receive, send)

    async def _pass(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request to the application of the model of this name."""
        await self._apps[name](scope, receive, send)

    def _named(self, model: str | None) -> str | None:
        """Returns the name of the model that a client calls so: by one of its names, or with an adapter."""
        base, colon, _ = (model or "").rpartition(":")
        return self._names.get(model or "") or (self._names.get(base) if colon else None)

    def _split(self, path: str) -> tuple[str | None, str]:
        """Returns the model whose name a path begins with, which may have slashes, and what follows it."""
        for name in sorted(self._names, key=len, reverse=True):
            if path == name or path.startswith(f"{name}/"):
                return self._names[name], path[len(name) + 1 :]
        return None, path

    def _of_path(self, scope: Scope) -> str | None:
        """Returns the model of the run or the tree that a path names, if it is in memory here and the client
        may see it."""
        path: str = scope["path"]
        run, tree = _RUN.match(path), _TREE.match(path)
        if (run or tree) and self._access.admits(scope):
            with owned_by(client_of(HTTPConnection(scope))):
                for service in self._services:
                    if service.runs.holds(run=run and run[1], tree=tree and tree[1]):
                        return service.name
        if path.startswith("/v1/models/"):
            return path.removeprefix("/v1/models/")
        return None

    async def _list(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers with the models of all services, and the headers of the first one's answer; each has
        checked that the client may know it."""
        field = _LISTS[scope["path"]]
        listed, headers = [], list[tuple[bytes, bytes]]()
        for app in self._apps.values():
            parts: list[Message] = []

            async def take(message: Message, parts: list[Message] = parts) -> None:
                parts.append(message)

            await app(scope, receive, take)
            if parts[0]["status"] != 200:
                for part in parts:
                    await send(part)
                return
            listed += json.loads(b"".join(part.get("body", b"") for part in parts[1:]))[field]
            headers = headers or parts[0]["headers"]
        if field == "data":
            ends = {"first_id": listed[0]["id"], "last_id": listed[-1]["id"], "has_more": False}
            answer = JSON({"object": "list", "data": listed, **ends})
        else:
            answer = JSON({field: listed})
        answer_names = {name for name, _ in answer.raw_headers}
        answer.raw_headers += [(name, value) for name, value in headers if name not in answer_names]
        await answer(scope, receive, send)

    async def _model_of(self, request: Request) -> tuple[str | None, Receive]:
        """Returns the model that a body names, and what gives the body to the application once more. A large
        body is parsed on a thread; raises if it is larger than the server allows."""

        async def use(data: bytes) -> tuple[str | None, bytes]:
            if len(data) > LONG_BODY:
                long = self._services[0].pools.long
                return await long.run_for(client_of(request), _model_of, data), data
            return _model_of(data), data

        name, data = await self._bodies.receive(request, use)
        pending: list[Message] = [{"type": "http.request", "body": data, "more_body": False}]

        async def again() -> Message:
            return pending.pop() if pending else await request.receive()

        return name, again


def _model_of(data: bytes) -> str | None:
    """Returns the model that a JSON body names. A body that is wrong is for the application to refuse."""
    check_size(data)
    try:
        body = from_json(data)
    except ValueError:
        return None
    name = body.get("model") or body.get("name") if isinstance(body, dict) else None
    return name.removesuffix(_LATEST) if isinstance(name, str) and name else None


def _refusal(error: Exception) -> ASGIApp:
    """Returns an application that raises an error, for `AccessControl` to answer and to log."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        raise error

    return refuse
