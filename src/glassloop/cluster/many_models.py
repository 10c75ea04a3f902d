"""Several models behind one address: a request goes to the model that its body names, else to the first one.
`/models/NAME/…` is all that a server with this model alone would answer, the studio and metrics included.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glassloop.server.app import make_app
from glassloop.server.service import Service
from glassloop.server.streaming import JSON

_PREFIX = "/models/"
_RUN = re.compile(r"/api/runs/([0-9a-f]{1,64})(/|$)")
_TREE = re.compile(r"/api/trees/([0-9a-f]{1,64})(/|$)")


class ManyModels:
    """An ASGI application that passes each request to the application of one model."""

    def __init__(self, services: Sequence[Service]) -> None:
        self._services = list(services)
        self._apps: dict[str, ASGIApp] = {service.name: make_app(service) for service in services}
        self._first = services[0].name
        self._most_body = services[0].settings.most_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._apps[self._first](scope, receive, send)
            return
        path: str = scope["path"]
        if path.startswith(_PREFIX):
            named, _, rest = path.removeprefix(_PREFIX).partition("/")
            inner = {**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode(), "root_path": ""}
            app = self._apps.get(named)
            await (app or self._apps[self._first])(scope if app is None else inner, receive, send)
            return
        if path == "/v1/models" and scope["method"] in ("GET", "HEAD"):
            await self._list(scope, receive, send)
            return
        name = self._of_path(path)
        if name is None and scope["method"] == "POST" and path.startswith("/v1/"):
            body, again = await self._body(Request(scope, receive))
            name, receive = _model_of(body), again
        # A model that is not here is refused by the first application, which checks the client's key before.
        await self._apps.get(name or self._first, self._apps[self._first])(scope, receive, send)

    def _of_path(self, path: str) -> str | None:
        """Returns the model of the run or the tree that a path names, if it is in memory here."""
        run, tree = _RUN.match(path), _TREE.match(path)
        for service in self._services:
            for state in service.runs.states if run or tree else ():
                if (run and state.run.id == run[1]) or (tree and state.tree.id == tree[1]):
                    return service.name
        if path.startswith("/v1/models/"):
            return path.removeprefix("/v1/models/")
        return None

    async def _list(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers with the models of all services; each has checked that the client may know it."""
        listed = []
        for app in self._apps.values():
            parts: list[Message] = []

            async def take(message: Message, parts: list[Message] = parts) -> None:
                parts.append(message)

            await app(scope, receive, take)
            if parts[0]["status"] != 200:
                for part in parts:
                    await send(part)
                return
            listed += json.loads(b"".join(part.get("body", b"") for part in parts[1:]))["data"]
        await JSON({"object": "list", "data": listed})(scope, receive, send)

    async def _body(self, request: Request) -> tuple[bytes, Receive]:
        """Returns the body as far as it is allowed to be, and what gives it to the application once more."""
        messages: list[Message] = []
        size, more = 0, True
        while more and size <= self._most_body:
            message = await request.receive()
            messages.append(message)
            size += len(message.get("body", b""))
            more = message["type"] == "http.request" and message.get("more_body", False)
        pending = iter(messages)

        async def again() -> Message:
            return next(pending, None) or await request.receive()

        return b"".join(message.get("body", b"") for message in messages), again


def _model_of(body: bytes) -> str | None:
    """Returns the model that a JSON body names. A body that is wrong is for the application to refuse."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    name = found.get("model") if isinstance(found, dict) else None
    return name if isinstance(name, str) and name else None
