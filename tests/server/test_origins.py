"""Pages of other sites that the operator allows with `--allow-origin`: as browsers ask for them, by CORS."""

from __future__ import annotations

import pytest

from glassloop.errors import GlassloopError
from glassloop.server.operation.settings import ServerSettings

from .conftest import serving

SITE, LOCAL = "https://app.example", "http://localhost:5173"
KEY = {"authorization": "Bearer secret"}
CROSS = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}


@pytest.fixture(scope="module")
def shared():
    flags = ["--allow-origin", SITE, "--allow-origin", LOCAL, "--api-key", "secret", "--kv-memory", "100MB"]
    with serving(*flags) as server:
        yield server


def preflight(server, path, origin=SITE, method="POST", **headers):
    import httpx2 as httpx

    asked = {"origin": origin, "access-control-request-method": method, **CROSS, **headers}
    return httpx.options(server.url + path, headers=asked, timeout=120)


@pytest.mark.parametrize("origin", [SITE, LOCAL])
def test_a_page_of_an_allowed_site_may_ask(shared, origin):
    names = "authorization, content-type, x-stainless-lang"
    asked = {"access-control-request-headers": names}
    for method, path in (
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("DELETE", "/api/runs/0123456789abcdef"),
        ("POST", "/tokenize"),
    ):
        answer = preflight(shared, path, origin, method, **asked)
        assert answer.status_code == 204 and answer.content == b"", path
        assert answer.headers["access-control-allow-origin"] == origin
        assert answer.headers["access-control-allow-methods"] == method
        assert answer.headers["access-control-allow-headers"] == names
        assert "origin" in answer.headers["vary"].lower()
        assert "access-control-allow-credentials" not in answer.headers
    body = {"prompt": "x", "max_tokens": 2}
    answer = shared.post("/v1/completions", body, headers={"origin": origin, **CROSS, **KEY})
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == origin
    assert "x-glassloop-run" in answer.headers["access-control-expose-headers"]


def test_it_may_read_errors_and_needs_its_key(shared):
    answer = shared.post("/v1/completions", {"prompt": "x"}, headers={"origin": SITE, **CROSS})
    assert answer.status_code == 401 and answer.headers["access-control-allow-origin"] == SITE
    answer = shared.post("/v1/completions", {}, headers={"origin": SITE, **CROSS, **KEY})
    assert answer.status_code == 400 and answer.headers["access-control-allow-origin"] == SITE


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://app.example", f"{SITE}:8443", f"{SITE}.evil.example", "null"]
)
def test_other_sites_stay_out(shared, origin):
    for answer in (
        preflight(shared, "/v1/completions", origin),
        shared.get("/v1/models", headers={"origin": origin, **CROSS, **KEY}),
    ):
        assert answer.status_code == 403
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_allowed_sites_get_the_api_only(shared):
    for path in ("/", "/docs", "/openapi.json", "/metrics", "/nothing"):
        answer = shared.get(path, headers={"origin": SITE, **CROSS, **KEY})
        assert answer.status_code == 403, path
        assert preflight(shared, path, method="GET").status_code == 403, path
    # An image or a link of the site tells no origin.
    assert shared.get("/v1/models", headers={**CROSS, **KEY}).status_code == 403


@pytest.mark.parametrize(
    ("method", "path"), [("DELETE", "/v1/models"), ("POST", "/v1/nothing"), ("BREW", "/v1/completions")]
)
def test_a_preflight_is_for_routes_that_exist(shared, method, path):
    answer = preflight(shared, path, method=method)
    assert answer.status_code == 404 and "access-control-allow-methods" not in answer.headers


def test_requested_headers_must_be_names(shared):
    answer = preflight(shared, "/v1/completions", **{"access-control-request-headers": "a: b"})
    assert "access-control-allow-headers" not in answer.headers


@pytest.mark.parametrize(
    "origin",
    ["*", "app.example", "https://app.example/", "https://App.example", "ftp://app.example", "null", ""],
)
def test_an_origin_is_written_as_browsers_write_it(origin):
    with pytest.raises(GlassloopError, match="allow-origin is"):
        ServerSettings("model", allow_origins=(origin,))


def test_without_a_key_the_host_must_be_local_all_the_same():
    with serving("--allow-origin", SITE, "--kv-memory", "100MB") as server:
        allowed = server.get("/v1/models", headers={"origin": SITE, **CROSS})
        assert allowed.status_code == 200 and allowed.headers["access-control-allow-origin"] == SITE
        renamed = {"origin": SITE, "host": "evil.example", **CROSS}
        assert server.get("/v1/models", headers=renamed).status_code == 403
        assert preflight(server, "/v1/completions", host="evil.example").status_code == 403
