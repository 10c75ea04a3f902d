"""Requests that a browser sends for a page of another site: refused on every route, whatever the method and
the content type; those of the server's own pages and of clients that are no browsers are let through.
"""

from __future__ import annotations

import pytest
from attacks.harness import Server
from attacks.routes import GOOD, Document

_FOREIGN = (
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1.evil.example"},
    {"origin": "http://localhost.evil.example:80"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
    {"sec-fetch-site": "cross-site", "origin": "https://evil.example", "content-type": "text/plain"},
)
_NOT_JSON = (
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "",
    "text/json;x",
)


def _routes(server: Server) -> list[tuple[str, str]]:
    document = Document(server.get("/openapi.json").json())
    listed = [(route.method, route.path) for route in document.routes]
    return [*listed, ("GET", "/"), ("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/nothing")]


def _ask(server: Server, method: str, path: str, headers: dict[str, str]) -> int:
    filled = (
        path.replace("{id}", "0" * 16)
        .replace("{index}", "0")
        .replace("{name}", "layers")
        .replace("{model}", "x")
    )
    body = GOOD.get(path, {}) if method == "POST" else None
    answer = server.ask(method, filled, body, headers)
    if answer.status == 403:
        assert answer.error["message"]
    assert not any(name.startswith("access-control") for name in answer.headers), (path, headers)
    return answer.status


@pytest.mark.parametrize("headers", _FOREIGN, ids=lambda headers: " ".join(headers.values()))
def test_other_sites_are_refused_on_every_route(tiny: Server, headers: dict[str, str]) -> None:
    let_in = [(m, p) for m, p in _routes(tiny) if _ask(tiny, m, p, headers) != 403]
    assert let_in == []


@pytest.mark.parametrize("site", ["same-origin", "none", None])
def test_its_own_pages_and_plain_clients_come_in(tiny: Server, site: str | None) -> None:
    headers = {} if site is None else {"sec-fetch-site": site}
    if site == "same-origin":
        headers["origin"] = tiny.url
    for method, path in (("GET", "/"), ("GET", "/v1/models"), ("POST", "/tokenize"), ("GET", "/health")):
        assert _ask(tiny, method, path, headers) == 200, path


def test_a_link_from_another_site_may_open_the_start_page_only(tiny: Server) -> None:
    """Following a link is a cross-site navigation. It may be refused too; it must never reach the API."""
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    for path in ("/v1/models", "/api/runs", f"/api/runs/{'0' * 16}/explain/0", "/metrics", "/api/info"):
        assert _ask(tiny, "GET", path, headers) == 403, path


def test_preflights_allow_nothing(tiny: Server) -> None:
    asked = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    for _, path in _routes(tiny):
        status = _ask(tiny, "OPTIONS", path, {**asked, "access-control-request-headers": "content-type"})
        assert status in (403, 404, 405), path


@pytest.mark.parametrize("kind", _NOT_JSON)
def test_json_comes_as_json_only(tiny: Server, kind: str) -> None:
    for path in GOOD:
        filled = path.replace("{id}", "0" * 16)
        answer = tiny.ask(
            "POST", filled, b'{"prompt": "x", "input": "x", "tokens": [1]}', {"content-type": kind}
        )
        assert answer.status in (400, 415) and answer.error, (path, answer.status)


def test_files_come_as_octet_streams_only(tiny: Server) -> None:
    run = tiny.post("/api/runs", {"prompt": "x", "sampling": {"max_tokens": 1}}).json()["runs"][0]["id"]
    tiny.settle()
    file = tiny.get(f"/api/runs/{run}/export").body
    tiny.ask("DELETE", f"/api/runs/{run}")
    for kind in ("text/plain", "application/json", "multipart/form-data; boundary=x", ""):
        answer = tiny.ask("POST", "/api/runs/import", file, {"content-type": kind})
        assert answer.status in (400, 415) and answer.error, kind
    taken = tiny.ask("POST", "/api/runs/import", file, {"content-type": "application/octet-stream"})
    assert taken.status == 201


def test_foreign_hosts_are_refused(tiny: Server) -> None:
    names = (
        "evil.example",
        f"evil.example:{tiny.port}",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "0",
        "",
    )
    for name in (*names, "localhost:80@evil.example", "[::1].evil.example", "localhost\t", "127.1"):
        answer = tiny.raw(f"GET /v1/models HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode(), 5)
        assert answer.split(b" ", 2)[1] in (b"403", b"400"), name
    for name in (f"localhost:{tiny.port}", f"127.0.0.1:{tiny.port}", "LOCALHOST"):
        answer = tiny.raw(f"GET /v1/models HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode(), 5)
        assert answer.split(b" ", 2)[1] == b"200", name


def test_no_answer_sends_a_client_elsewhere(tiny: Server) -> None:
    """A redirect would follow the Host header, which is not the server's to believe."""
    for path in ("/health/", "/v1/models/", "/api/runs/", "//evil.example/", "/docs/", "/\\evil.example"):
        raw = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        answer = tiny.raw(raw, 5)
        assert not answer.split(b" ", 2)[1].startswith(b"3"), path
        assert b"evil.example" not in answer.partition(b"\r\n\r\n")[0], path
