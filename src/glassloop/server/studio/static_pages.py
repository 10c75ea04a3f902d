"""The studio at `/`, or where it is not built a page that says how to build it. Files are looked up among
those that existed when the server started, so no path of a request reaches the file system."""

from __future__ import annotations

import mimetypes
from collections.abc import Awaitable, Callable
from html import escape
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from glassloop.server.http.clients import COOKIE
from glassloop.server.service import Service

POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " connect-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
)
_NOT_BUILT = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Glassloop</title>
<style>
body {{ font: 16px/1.6 system-ui, sans-serif; max-width: 40rem; margin: 4rem auto; padding: 0 1rem }}
code {{ background: #8882; padding: .1em .3em; border-radius: .2em }}
:root {{ color-scheme: light dark }}
</style>
<h1>Glassloop is running</h1>
<p>It serves <code>{model}</code>. The studio, the page that shows each token and its reasons, is not built in
this installation. In a clone of the repository, <code>make serve</code> builds and starts it.</p>
<p>All the rest is here: <a href="/docs">the API</a>, <a href="/health">health</a>,
<a href="/metrics">metrics</a>, and OpenAI's protocol at <code>/v1</code>.</p>
</html>
"""


def router(service: Service) -> APIRouter:
    routes = APIRouter(include_in_schema=False)
    folder = service.settings.static
    files = {f"/{path.relative_to(folder).as_posix()}": path for path in folder.rglob("*") if path.is_file()}

    @routes.get("/")
    async def index(request: Request) -> Response:
        if "key" in request.query_params:
            # It is checked already. From now on a cookie carries it, which no other site can send.
            response: Response = RedirectResponse("/", HTTPStatus.SEE_OTHER)
            key = quote(request.query_params["key"], safe="")  # so that the cookie has no quotes
            response.set_cookie(COOKIE, key, httponly=True, samesite="strict", path="/")
            return response
        page = files.get("/index.html")
        if page is None:
            html = _NOT_BUILT.format(model=escape(service.name))
            return HTMLResponse(html, headers={"content-security-policy": POLICY})
        return _file(page)

    for name, path in files.items():
        routes.add_api_route(name, _sender(path), methods=["GET"])
    return routes


def _sender(path: Path) -> Callable[[], Awaitable[Response]]:
    async def send() -> Response:
        return _file(path)

    return send


def _file(path: Path) -> Response:
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    # Built files have a hash in their names and never change; the page that names them may.
    lasting = path.parent.name == "assets"
    cache = "public, max-age=31536000, immutable" if lasting else "no-cache"
    headers = {"cache-control": cache, "content-security-policy": POLICY}
    return Response(path.read_bytes(), media_type=kind, headers=headers)
