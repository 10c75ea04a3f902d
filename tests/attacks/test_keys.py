"""What a client without a key can make the server do: nothing but refuse it, and at once."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks.harness import Server, serving
from starlette.requests import Request

from glassloop.server.http.clients import COOKIE, client_of, offered_keys, remember_key


@pytest.fixture(scope="module")
def keyed(tiny_file: Path) -> Iterator[Server]:
    with serving(
        "--kv-memory", "16MB", "--api-key", "s3cret/key;=", "--grace", "1", model=tiny_file
    ) as server:
        yield server
        assert server.held_up() == []


@pytest.mark.parametrize(
    "cookie",
    ['glassloop-key="' + "\\" * 60_000 + '"', "x=" + "\\" * 60_000, ";" * 60_000, "=;" * 30_000],
    ids=["quoted", "another", "empty", "many"],
)
def test_no_cookie_holds_up_the_server(keyed: Server, cookie: str) -> None:
    assert keyed.get("/v1/models", headers={"cookie": cookie}).status == 401


def test_no_query_holds_up_the_server(keyed: Server) -> None:
    assert keyed.get("/?" + "key=&" * 10_000).status == 401


def test_a_browser_carries_any_key_in_its_cookie(keyed: Server) -> None:
    entered = keyed.get("/?key=s3cret%2Fkey%3B%3D")
    cookie = entered.headers["set-cookie"].split(";")[0]
    assert entered.status == 303 and '"' not in cookie
    for header in (cookie, f"a=b; {cookie} ;c", f"x;{cookie}"):
        assert keyed.get("/v1/models", headers={"cookie": header}).status == 200
    wrong = {"cookie": cookie, "authorization": "Bearer wrong"}
    assert keyed.get("/v1/models", headers=wrong).status == 401


def test_one_client_does_not_hold_all_streams(tiny_file: Path) -> None:
    keys = {name: {"authorization": f"Bearer key-of-{name}"} for name in ("alice", "mallory")}
    flags = (
        "--kv-memory",
        "16MB",
        "--grace",
        "1",
        "--api-key",
        "key-of-alice",
        "--api-key",
        "key-of-mallory",
    )
    with serving(*flags, model=tiny_file) as server, contextlib.ExitStack() as stack:
        asked = {"prompt": "x", "sampling": {"max_tokens": 1}}
        runs = {
            name: server.ask("POST", "/api/runs", asked, headers=headers).json()["runs"][0]
            for name, headers in keys.items()
        }

        def follow(name: str) -> int:
            connection = stack.enter_context(contextlib.closing(server.connect()))
            connection.request("GET", f"/api/trees/{runs[name]['tree']}/events", headers=keys[name])
            return connection.getresponse().status

        statuses = [follow("mallory") for _ in range(140)]
        assert statuses.count(200) == 128 and statuses.count(429) == 12
        assert [follow("alice") for _ in range(8)] == [200] * 8
        assert server.held_up() == []


def test_long_edits_of_one_client_do_not_hold_up_those_of_another(tiny_file: Path) -> None:
    flags = (
        "--kv-memory",
        "64MB",
        "--grace",
        "1",
        "--api-key",
        "key-of-alice",
        "--api-key",
        "key-of-mallory",
    )
    with serving(*flags, model=tiny_file) as server, contextlib.ExitStack() as stack:
        long = {
            "text": "ab" * 60,
            "check": "contains:what nobody would write",
            "budget": 200_000,
            "candidates": 2,
        }
        for _ in range(20):
            connection = stack.enter_context(contextlib.closing(server.connect()))
            headers = {"authorization": "Bearer key-of-mallory", "content-type": "application/json"}
            connection.request("POST", "/api/edits/repair", json.dumps(long), headers)
        short, headers = {"text": "abc", "budget": 10}, {"authorization": "Bearer key-of-alice"}
        assert server.ask("POST", "/api/edits/repair", short, headers=headers, timeout=60).status == 200
        assert server.held_up() == []


def _scope(client: str = "192.0.2.1", **headers: str) -> dict:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {
        "type": "http",
        "path": "/v1/models",
        "query_string": b"",
        "headers": named,
        "client": (client, 5000),
    }


def test_a_key_of_a_header_comes_before_the_cookie() -> None:
    cookie = {"cookie": f"{COOKIE}=b"}
    assert offered_keys(_scope(authorization="Bearer a", **cookie)) == [b"a"]
    assert offered_keys(_scope(x_api_key="a", **cookie)) == [b"a"]
    assert offered_keys(_scope(authorization="Basic a", **cookie)) == [b"b"]
    assert offered_keys(_scope(cookie=f"{COOKIE}={'%41' * 5000}")) == [b"A" * 341 + b"%"]


def test_a_client_is_its_key_and_else_its_address() -> None:
    with_key, other = _scope(), _scope()
    remember_key(with_key, b"secret-key")
    remember_key(other, b"another-key")
    assert client_of(Request(with_key)) != client_of(Request(other))
    assert "secret" not in client_of(Request(with_key))
    # A header that nobody has checked names nobody.
    assert client_of(Request(_scope())) == client_of(Request(_scope(authorization="Bearer x")))
    assert client_of(Request(_scope())) != client_of(Request(_scope(client="192.0.2.2")))
