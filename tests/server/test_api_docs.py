"""The page `/docs`: it describes every route, loads nothing from elsewhere, and its examples work."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import httpx2 as httpx
import pytest
from waiting import wait_until

from glassloop.server.operation.api_examples import EXAMPLES

from .conftest import MODEL


class Page(HTMLParser):
    """The addresses that a page loads or links to, its forms and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses, self.forms, self.inline, self.labels = [], [], 0, 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.addresses += [found[name] for name in ("src", "href") if name in found]
        self.inline += tag == "style" or (tag == "script" and "src" not in found) or "style" in found
        self.inline += any(name.startswith("on") for name in found)
        self.labels += tag == "label"
        if tag == "form":
            self.forms.append(f"{found['data-method']} {found['data-path']}")


@pytest.fixture(scope="module")
def operations(server):
    paths = server.get("/openapi.json").json()["paths"]
    return {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}


def test_every_route_has_a_sentence_and_an_example(operations):
    assert set(EXAMPLES) == operations
    for example in EXAMPLES.values():
        assert re.fullmatch(r"[A-Z].{10,}\.", example.about)


def test_the_page_shows_them_and_loads_nothing_from_elsewhere(server, operations):
    answer = server.get("/docs")
    page = Page(answer.text)
    assert set(page.forms) == operations and page.inline == 0 and page.labels > 20
    for name, example in EXAMPLES.items():
        shown = f"<summary><code>{name}</code> <span>{example.about}</span></summary>"
        assert shown.replace("'", "&#x27;") in answer.text
    assert all(address.startswith(("/", "data:image/svg")) for address in page.addresses)
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    for address in page.addresses:
        if address.startswith("/"):
            assert server.get(address).status_code == 200, address
    script = server.get("/docs.js")
    assert script.headers["content-type"].startswith("text/javascript") and "http" not in script.text


def settle(server, id):
    """Waits until nothing is computed for a run."""
    wait_until(lambda: server.get(f"/api/runs/{id}").json()["status"] not in ("waiting", "running"))


def test_every_example_works(server):
    started = server.post("/api/runs", EXAMPLES["POST /api/runs"].body).json()["runs"][0]
    settle(server, started["id"])
    talk = EXAMPLES["POST /v1/conversations"].body
    conversation = server.post("/v1/conversations", talk).json()["id"]
    item = server.get(f"/v1/conversations/{conversation}/items").json()["data"][0]["id"]
    ordered = sorted(EXAMPLES, key=lambda name: name.startswith("DELETE"))
    for name in ordered:
        if name.startswith("DELETE"):  # each removes a run
            started = server.post("/api/runs", EXAMPLES["POST /api/runs"].body).json()["runs"][0]
            settle(server, started["id"])
        example = EXAMPLES[name]
        method, path = name.split()
        if "CONVERSATION" in example.path.values():
            path = path.replace("{id}", conversation).replace("{item}", item)
        path = path.replace("/trees/{id}", f"/trees/{started['tree']}").replace("{id}", started["id"])
        for key, value in example.path.items():
            path = path.replace("{" + key + "}", MODEL if value == "MODEL" else value)
        for body in [example.body, *(body for _, body in example.more)]:
            sent = {} if body is None else {"json": body}
            if example.is_file:
                sent = {
                    "content": server.get(f"/api/runs/{started['id']}/export").content,
                    "headers": {"content-type": "application/octet-stream"},
                }
            address = f"{server.url}{path}?{example.query}" if example.query else server.url + path
            answer = httpx.request(method, address, timeout=120, **sent)
            assert 200 <= answer.status_code < 300, (name, answer.text)
            if name == "POST /v1/chat/completions" and "tools" in body:
                assert answer.json()["choices"][0]["finish_reason"] == "tool_calls"
        settle(server, started["id"]) if not name.startswith("DELETE") else None
