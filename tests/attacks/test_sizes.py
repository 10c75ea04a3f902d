"""Bodies of up to 8 MB that are too large in some field, of every route: refused with the name of the field,
while `/health` answers and memory stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from attacks.harness import Server, Watch, left_behind, standing
from attacks.limits import FACTOR
from attacks.routes import GOOD, Document, Field, Route, put
from hostile.values import dumps

_MOST = 8_000_000 if FACTOR else 1_500_000  # bytes of a body
_FEW = 4_000  # bytes, for each field of each route


def _oversized(field: Field, size: int) -> Iterator[tuple[str, bytes]]:
    """JSON values of about so many bytes, of the field's own type and of others."""
    types = field.types
    if "array" in types or not FACTOR:
        for item in (b"null", b"1", b'"a"', b"[]", b"{}", b"[[]]", b'{"a":1}', b"1e999", b"-1", b'"\\ud800"'):
            yield f"{item.decode()} ...", b"[" + b",".join([item] * (size // (len(item) + 1))) + b"]"
    yield "a long text", b'"' + b"a" * size + b'"'
    yield "a text of pairs", b'"' + b"ab" * (size // 2) + b'"'
    yield "many keys", b"{" + b",".join(b'"k%d":1' % at for at in range(size // 12)) + b"}"
    yield "a long number", b"9" * min(size, 4000)
    yield "nested lists", b"[" * min(size // 2, 50_000) + b"]" * min(size // 2, 50_000)
    yield "nested objects", b'{"a":' * min(size // 6, 50_000) + b"1" + b"}" * min(size // 6, 50_000)


def _document(server: Server) -> Document:
    return Document(server.get("/openapi.json").json())


def _body(route: Route, field: Field, value: bytes) -> bytes:
    return dumps(put(route.good(), field.path, "HERE")).replace(b'"HERE"', value)


def _ask(server: Server, run: str, route: Route, field: Field, what: str, value: bytes, named: bool) -> None:
    answer = server.post(route.path.replace("{id}", run), _body(route, field, value), headers=_JSON)
    place = f"{route.path} {'.'.join(map(str, field.path))}: {what} ({len(value)} bytes)"
    assert server.alive, place
    assert answer.status < 500, f"{place}: {answer.status} {answer.body[:200]!r}"
    if answer.status >= 400:
        error = answer.error
        said = f"{error['param']} {error['message']}"
        assert len(said) < 2000, place
        if named and what not in ("nested lists", "nested objects"):
            assert any(str(part) in said for part in field.path if isinstance(part, str)), f"{place}: {error}"


_JSON = {"content-type": "application/json"}


def _run(server: Server) -> str:
    options = {"max_tokens": 2, "seed": 1}
    run: str = server.post("/api/runs", {"prompt": "Hi", "sampling": options}).json()["runs"][0]["id"]
    server.settle()
    return run


@pytest.mark.parametrize("path", GOOD)
def test_every_field_of_every_body(tiny: Server, path: str) -> None:
    """Some kilobytes in each field, at each depth."""
    document, run = _document(tiny), _run(tiny)
    route = next(route for route in document.with_body if route.path == path)
    with Watch(tiny) as watch:
        for field in document.fields(route):
            for at, (what, value) in enumerate(_oversized(field, _FEW)):
                # A different choice for each field keeps this short; all of them in the long run.
                if FACTOR or (at + len(str(field.path))) % 4 == 0:
                    _ask(tiny, run, route, field, what, value, named=True)
    watch.report.check()


@pytest.mark.parametrize("path", GOOD)
def test_the_largest_bodies(tiny: Server, path: str) -> None:
    """Megabytes in the fields that take lists, texts or objects."""
    document, run, before = _document(tiny), _run(tiny), standing(tiny)
    route = next(route for route in document.with_body if route.path == path)
    fields = [field for field in document.fields(route) if len(field.path) == 1 and field.types & _LARGE]
    main = [field for field in fields if field.name in GOOD[path]] or fields[:1]
    with Watch(tiny) as watch:
        for field in fields if FACTOR else main:
            for at, (what, value) in enumerate(_oversized(field, _MOST)):
                if FACTOR or at in (0, 3, 4, len(path) % 10, 11):
                    _ask(tiny, run, route, field, what, value, named=False)
    watch.report.check()
    left_behind(tiny, before)


_LARGE = {"array", "string", "object"}


def _items(count: int, item: Any) -> list[Any]:
    return [item] * count


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/completions", {"prompt": _items(600_000, None)}, "prompt"),
        ("/v1/embeddings", {"input": _items(600_000, None)}, "input"),
        ("/detokenize", {"tokens": _items(600_000, None)}, "tokens"),
        ("/v1/responses", {"input": _items(600_000, None)}, "input"),
        ("/api/runs", {"token_ids": _items(600_000, None)}, "token_ids"),
        ("/api/runs", {"messages": _items(100_000, {"role": "x", "content": ""})}, "messages"),
        ("/tokenize", {"messages": _items(100_000, {"role": "user", "content": "x"})}, "messages"),
        ("/v1/completions", {"prompt": _items(900_000, [])}, "prompt"),
        ("/tokenize", {"prompt": "a" * 2_900_000}, "prompt"),
        ("/tokenize", {"prompt": "words and " * 290_000}, "prompt"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a" * 2_900_000}]}]},
            "messages",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": _items(80_000, {"type": "text", "text": "a"})}]},
            "messages",
        ),
        ("/v1/completions", {"prompt": "x", "stop": "ab" * 1_400_000}, "stop"),
        ("/v1/completions", {"prompt": "x", "bad_words": "x" * 2_900_000}, "bad_words"),
        ("/v1/completions", {"prompt": "x", "allowed_token_ids": _items(900_000, 1)}, "allowed_token_ids"),
        ("/v1/completions", {"prompt": "x", "bad_words": [_items(900_000, 1)]}, "bad_words"),
        ("/v1/completions", {"prompt": "x", "stages": _items(300_000, "top_k")}, "stages"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_was_seen_to_freeze_it(tiny: Server, path: str, body: dict[str, Any], field: str) -> None:
    data = dumps(body)
    assert len(data) < 8_000_000
    with Watch(tiny) as watch:
        answer = tiny.post(path, data, headers=_JSON)
    error = answer.error
    assert answer.status in (400, 413) and field in f"{error['param']} {error['message']}", error
    watch.report.check()


@pytest.mark.parametrize("name", ["n", "beam_width"])
def test_no_route_starts_more_runs_than_one_request_may(tiny: Server, name: str) -> None:
    run = tiny.post("/api/runs", {"prompt": "x", "sampling": {"max_tokens": 2, "seed": 1}}).json()["runs"][0]
    tiny.settle()
    chat = {"messages": [{"role": "user", "content": "x"}]}
    routes: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", {"prompt": "x", "max_tokens": 2}),
        ("/v1/chat/completions", {**chat, "max_tokens": 2}),
        ("/api/runs", {"prompt": "x"}),
        ("/api/runs", {"prompt": "x", "strategies": [{"name": "a"}]}),
        (f"/api/runs/{run['id']}/fork", {"at": 0}),
        (f"/api/runs/{run['id']}/edit", {"at": 0, "text": "x"}),
    ]
    for path, body in routes:
        options = {name: 1000, "max_tokens": 2}
        nested = {"sampling": options} if path.startswith("/api/") else options
        if "strategies" in body:
            nested = {"strategies": [{"name": "a", "sampling": options}]}
        answer = tiny.post(path, {**body, **nested})
        assert answer.status == 400 and answer.error["param"] == name, (path, answer.body)


def test_samples_that_end_together_hold_up_nobody(tiny: Server) -> None:
    body = {"prompt": "x", "sampling": {"n": 128, "max_tokens": 60, "ignore_eos": True}}
    with Watch(tiny) as watch:
        for _ in range(3):
            assert tiny.post("/api/runs", body).status == 201
        tiny.settle()
    watch.report.check()


def test_unknown_keys_are_refused_without_being_listed(tiny: Server) -> None:
    data = b'{"prompt": "x",' + b",".join(b'"k%d":1' % at for at in range(250_000)) + b"}"
    with Watch(tiny) as watch:
        answer = tiny.post("/v1/completions", data, headers=_JSON)
    assert answer.status in (400, 413) and len(answer.body) < 2000 and answer.error
    watch.report.check()
