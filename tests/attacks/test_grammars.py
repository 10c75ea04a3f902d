"""Grammars, schemas and regular expressions that are far too much: refused, or compiled in bounded time and
memory, on every way in. None ends the process and none holds up the others.
"""

from __future__ import annotations

from random import Random
from typing import Any
from urllib.parse import quote

import pytest
from attacks.harness import Answer, Server, Watch, left_behind, standing
from attacks.limits import FACTOR, SEED, cases
from hostile.grammars import GRAMMARS, REGEXES, SCHEMAS, form

_SIZES = (100, 1000, 3000, 10_000, 30_000) if FACTOR else (200, 6000)
_ASK = {"prompt": "x", "max_tokens": 3, "timeout": 5, "seed": 1}
_CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "timeout": 5}


def ask(server: Server, what: str, path: str, body: dict[str, Any]) -> Answer:
    answer = server.post(path, body)
    assert server.alive, what
    assert answer.status == 200 or (400 <= answer.status < 500 and answer.error), (
        f"{what}: {answer.body[:300]!r}"
    )
    return answer


@pytest.mark.parametrize("name", GRAMMARS)
def test_grammars(tiny: Server, name: str) -> None:
    with Watch(tiny) as watch:
        for size in _SIZES:
            ask(tiny, f"{name} {size}", "/v1/completions", {**_ASK, "grammar": GRAMMARS[name](size)})
    watch.report.check()


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas(tiny: Server, name: str) -> None:
    with Watch(tiny) as watch:
        for size in _SIZES:
            ask(tiny, f"{name} {size}", "/v1/completions", {**_ASK, "json_schema": SCHEMAS[name](size)})
    watch.report.check()


@pytest.mark.parametrize("name", REGEXES)
def test_regular_expressions(tiny: Server, name: str) -> None:
    with Watch(tiny) as watch:
        for size in _SIZES:
            ask(tiny, f"{name} {size}", "/v1/completions", {**_ASK, "regex": REGEXES[name](size)})
    watch.report.check()


@pytest.mark.parametrize("name", ["bare chain", "required chain", "anyOf chain", "many required", "circle"])
def test_every_way_in_is_bounded_alike(tiny: Server, name: str) -> None:
    made = SCHEMAS[name](_SIZES[-1])
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": made}}
    ask(tiny, "chat", "/v1/chat/completions", {**_CHAT, "response_format": form})
    ask(tiny, "completions", "/v1/completions", {**_ASK, "response_format": form})
    text = {"format": {"type": "json_schema", "name": "x", "schema": made}}
    ask(tiny, "responses", "/v1/responses", {"input": "x", "max_output_tokens": 3, "text": text})
    ask(tiny, "runs", "/api/runs", {"prompt": "x", "sampling": {"json_schema": made}})
    tiny.settle()


def test_explain_takes_grammars_too(tiny: Server) -> None:
    body = {"prompt": "x", "sampling": {"max_tokens": 2}}
    run = tiny.post("/api/runs", body).json()["runs"][0]["id"]
    tiny.settle()
    for made in (
        GRAMMARS["rule chain"](3500),
        GRAMMARS["terminal chain"](3000),
        GRAMMARS["mixed chain"](2000),
    ):
        answer = tiny.get(f"/api/runs/{run}/explain/0?grammar={quote(made[:60_000])}")
        assert tiny.alive and answer.status < 500
    fork = {"at": 0, "sampling": {"grammar": GRAMMARS["rule chain"](6000)}}
    assert tiny.post(f"/api/runs/{run}/fork", fork).status < 500 and tiny.alive


def test_random_forms(tiny: Server) -> None:
    rng, before = Random(SEED), standing(tiny)
    with Watch(tiny) as watch:
        for number in range(cases(100)):
            made = form(rng)
            ask(tiny, f"{number}: {made}", "/v1/completions", {**_ASK, **made})
    watch.report.check()
    left_behind(tiny, before)


def test_an_ambiguous_grammar_does_not_hold_up_the_others(real: Server) -> None:
    made = 'start: a\na: "x" | a a | a a a | a a a a'
    tokens = 200 if FACTOR else 60
    with Watch(real, canary=True) as watch:
        ask(
            real,
            "ambiguous",
            "/v1/completions",
            {**_ASK, "grammar": made, "max_tokens": tokens, "timeout": 30},
        )
    watch.report.check(canary=True)
