"""Servers in the process of the tests, with clients that have a key or an address of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import uvicorn
from starlette.types import ASGIApp

from glassloop import LLM
from glassloop.server.app import make_app
from glassloop.server.http.access import AccessControl
from glassloop.server.operation.logs import Log
from glassloop.server.operation.settings import ServerSettings
from glassloop.server.runs.storage import RunStorage
from glassloop.server.service import Service

KEYS = ("key-of-alice", "key-of-mallory")


class Client:
    """A client of the server with a key, or an address, of its own."""

    def __init__(self, url: str, key: str | None = None, address: str | None = None) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        transport = httpx.HTTPTransport(local_address=address)
        self.http = httpx.Client(base_url=url, headers=headers, transport=transport, timeout=60)

    def ask(self, path: str, body: dict[str, Any]) -> Any:
        answer = self.http.post(path, json=body)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def run(self, prompt: str, **sampling: Any) -> dict[str, Any]:
        """Returns the whole record of a run, once it has ended."""
        body = {"prompt": prompt, "sampling": {"max_tokens": 4, "seed": 1, **sampling}}
        return self.ended(self.ask("/api/runs", body)["runs"][0]["id"])

    def ended(self, id: str) -> dict[str, Any]:
        while True:
            found = self.http.get(f"/api/runs/{id}").json()
            if found["status"] not in ("waiting", "running"):
                return self.http.get(f"/api/runs/{id}").json()  # the first may have been read too early
            time.sleep(0.01)

    def listed(self, **query: Any) -> list[str]:
        """Returns the ids of a part of the list of runs."""
        answer = self.http.get("/api/runs", params={"limit": 1000, **query})
        assert answer.status_code == 200, answer.text
        return [run["id"] for run in answer.json()["runs"]]

    def delete(self, run: dict[str, Any]) -> None:
        assert self.http.delete(f"/api/runs/{run['id']}").status_code == 204


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """Serves an application and yields its URL."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(60)


class Place:
    """A server with two keys, its two clients, and the application."""

    def __init__(self, service: Service, app: AccessControl, url: str) -> None:
        self.service, self.app = service, app
        self.alice, self.mallory = (Client(url, key) for key in KEYS)


@contextmanager
def place(
    llm: LLM,
    store: str | Path | None = None,
    change: Callable[[Any, Service], None] | None = None,
    **settings: Any,
) -> Iterator[Place]:
    made = ServerSettings("tiny", **{"api_keys": KEYS, "store": store, **settings})
    storage = None if store is None else RunStorage(store, None, made.keep, Log())
    service = Service(llm, made, Log(), storage)
    app = make_app(service)
    assert isinstance(app, AccessControl)
    if change is not None:
        change(app._app, service)
    try:
        with serving(app) as url:
            yield Place(service, app, url)
    finally:
        service.pools.close()
        if storage is not None:
            storage.close()
