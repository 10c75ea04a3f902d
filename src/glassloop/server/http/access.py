"""The checks that every request passes before an endpoint gets it: its site, its API key and its size.

Plain ASGI, so that streams and their ends go straight through. It also counts and logs requests.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glassloop.engine.owner import owned_by
from glassloop.server.http.bodies import too_large
from glassloop.server.http.clients import client_of, offered_keys, remember_key
from glassloop.server.http.errors import APIError, as_api_error, shutting_down
from glassloop.server.http.streaming import ClientGone
from glassloop.server.service import Service
from glassloop.util.shown import printable

_OPEN = ("/health", "/ready")  # needs no key
PROBES = (*_OPEN, "/metrics")  # what machines ask for every few seconds
_PROTOCOLS = ("/v1/", "/api/")
_LOCAL = ("localhost", "127.0.0.1", "::1")
_CLOSED = ("/v1/", "/api/", "/tokenize", "/detokenize", "/metrics", "/docs", "/openapi.json")
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9.-]+))(?::\d{1,5})?")  # [IPv6] or a name, and a port
_SHARED = ("/v1/", "/api/", "/tokenize", "/detokenize", *_OPEN)  # open to the sites that are allowed
_NAMES = re.compile(r"[\w.-]{1,100}(?:\s*,\s*[\w.-]{1,100}){0,99}", re.ASCII)  # a list of header names
_SHOWN = "x-glassloop-run, x-request-id, retry-after"  # headers that pages of those sites may read
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
}
_FOREIGN_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Glassloop</title>
<p>Another site sent you here. Glassloop answers only to its own pages: <a href="/">open the studio</a>, or
paste the link into the address bar.</p>
</html>
"""


class AccessControl:
    def __init__(self, app: ASGIApp, service: Service, routes: Sequence[BaseRoute] = ()) -> None:
        self._app = app
        self._routes = routes
        self._service = service
        self._settings = service.settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"].startswith(_PROTOCOLS) and scope["path"].endswith("/"):
            scope = {**scope, "path": scope["path"].rstrip("/")}  # some clients end every path so
        began, status, method = time.perf_counter(), 0, scope["method"]
        if method == "HEAD" and not scope["path"].endswith("/events"):
            scope = {**scope, "method": "GET"}  # the HTTP server drops the body
        run: str | None = None
        origin = self._allowed_origin(scope)

        async def answer(message: Message) -> None:
            nonlocal status, run
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if origin is not None:
                    headers["access-control-allow-origin"] = origin
                    headers["access-control-expose-headers"] = _SHOWN
                if self._settings.allow_origins:
                    headers.add_vary_header("origin")
                run = headers.get("x-glassloop-run")
            await send(message)

        try:
            preflight = self._preflight(scope) if origin is not None else None
            self._check(scope, is_allowed=origin is not None, needs_key=preflight is None)
            with owned_by(client_of(HTTPConnection(scope)), apart=self._settings.keeps_apart):
                await (preflight or self._app)(scope, receive, answer)
        except ClientGone:
            status = 499
        except Exception as error:
            refusal = as_api_error(error)
            if refusal.status == 500:
                self._service.log("error", path=scope["path"], error=f"{type(error).__name__}: {error}")
            if status == 0:
                page = _foreign_page(scope) if refusal.code == "foreign_site" else None
                await (page or refusal.response_for(scope["path"]))(scope, receive, answer)
        finally:
            self._record(scope, method, status, run, time.perf_counter() - began)

    def admits(self, scope: Scope) -> bool:
        """Returns whether a request would be passed on, by its headers alone."""
        try:
            self._check(scope, is_allowed=self._allowed_origin(scope) is not None, needs_key=True)
        except APIError:
            return False
        return True

    def _allowed_origin(self, scope: Scope) -> str | None:
        """Returns the origin of a page of an allowed site that uses the API, None for all other requests."""
        if not self._settings.allow_origins or not _is_under(scope["path"], _SHARED):
            return None
        origin = Headers(scope=scope).get("origin")
        return origin if origin in self._settings.allow_origins else None

    def _preflight(self, scope: Scope) -> Response | None:
        """Returns the answer to a browser that asks whether a page of an allowed site may send a request:
        yes, if there is such a route. None for a request itself."""
        headers = Headers(scope=scope)
        method = headers.get("access-control-request-method")
        if scope["method"] != "OPTIONS" or method is None:
            return None
        if not any(route.matches({**scope, "method": method})[0] is Match.FULL for route in self._routes):
            message = f"there is no {printable(method)} {printable(scope['path'])}"
            return APIError(404, message).response_for(scope["path"])
        allowed = {
            "access-control-allow-methods": method,
            "access-control-max-age": "600",
            "vary": "access-control-request-method, access-control-request-headers",
        }
        names = headers.get("access-control-request-headers", "")
        if _NAMES.fullmatch(names):
            allowed["access-control-allow-headers"] = names
        if headers.get("access-control-request-private-network") == "true":
            allowed["access-control-allow-private-network"] = "true"
        return Response(status_code=204, headers=allowed)

    def _check(self, scope: Scope, is_allowed: bool, needs_key: bool) -> None:
        headers, path = Headers(scope=scope), scope["path"]
        if not is_allowed and _is_foreign(headers):
            message = "the request comes from a page of another site, which this server does not answer"
            raise APIError(403, message, code="foreign_site")
        if self._service.draining and path not in _OPEN:
            raise shutting_down()
        if self._settings.api_keys:
            offers = path == "/" and b"key=" in scope["query_string"]
            if needs_key and (offers or path_needs_key(path)) and not self._has_key(scope):
                raise APIError(
                    401,
                    "an API key is expected: Authorization: Bearer …",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
        elif self._settings.is_local and _host(headers) not in (*_LOCAL, self._settings.host):
            # A page of another site may have its own host name point here. Its requests carry that name.
            raise APIError(403, "this server answers to localhost only", code="wrong_host")
        length = headers.get("content-length", "0")
        if length.isascii() and length.isdigit() and int(length[:20]) > self._settings.most_body:
            raise too_large(self._settings.most_body)

    def _has_key(self, scope: Scope) -> bool:
        """Returns whether a request offers one of the keys, and notes which."""
        for offered in offered_keys(scope):
            if self.is_key(offered):
                remember_key(scope, offered)
                return True
        return False

    def is_key(self, offered: bytes) -> bool:
        """Returns whether this is one of the keys. All are compared, each in a time that does not show how
        much of it was right."""
        same = [hmac.compare_digest(offered, key.encode()) for key in self._settings.api_keys]
        return any(same)

    def _record(self, scope: Scope, method: str, status: int, run: str | None, seconds: float) -> None:
        """Counts and logs a request that is answered."""
        path = getattr(scope.get("route"), "path", "other")  # the pattern, as clients must not make up labels
        self._service.metrics.requests.labels(path, str(status or 499)).inc()
        details: dict[str, Any] = {"run": run} if run else {}
        self._service.log.request(
            status or 499,
            scope["path"] in PROBES,
            method=method,
            path=scope["path"][:200],
            seconds=round(seconds, 4),
            **details,
        )


def path_needs_key(path: str) -> bool:
    """Returns whether a path is one that only clients with a key may use, where there are keys."""
    return path not in _OPEN and _is_under(path, _CLOSED)


def _is_under(path: str, places: Sequence[str]) -> bool:
    return any(path == place.rstrip("/") or path.startswith(place) for place in places)


def _host(headers: Headers) -> str:
    match = _HOST.fullmatch(headers.get("host", "").lower())
    return "" if match is None else match[1] or match[2]


def _is_foreign(headers: Headers) -> bool:
    """Returns whether a browser sent this for a page of another site, whatever the method.

    Browsers say so in `Sec-Fetch-Site`, and in `Origin` where a page's script or form sends it. Other
    programs send neither.
    """
    if headers.get("sec-fetch-site", "").lower() in ("cross-site", "same-site"):
        return True
    origin = headers.get("origin")
    if origin is None:
        return False
    scheme, _, place = origin.lower().partition("://")
    return scheme not in ("http", "https") or _without_port(place) != _without_port(
        headers.get("host", "").lower()
    )


def _without_port(place: str) -> str:
    """Returns a host with its port, unless that is the usual one."""
    return place.removesuffix(":80").removesuffix(":443")


def _foreign_page(scope: Scope) -> HTMLResponse | None:
    """Returns a page for a person who followed a link to the studio, None for anything else."""
    headers = Headers(scope=scope)
    if scope["method"] == "GET" and scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate":
        return HTMLResponse(_FOREIGN_PAGE, 403)
    return None
