"""Patterns and schemas of clients, as extractors and verifiers: hard to compile, hard to search, or odd. They
hold up nobody, end in time, and leave nothing behind.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from attacks.harness import Server, Watch, left_behind, serving, standing

_HARD = "(?i)" + "[!-\uffff]" * 280  # to compile
_SLOW = "(a+)+$"
_TEXT = json.dumps(["a" * 21 + "!"])  # on which it takes a good part of a second
_SLOW_SCHEMA = "json:" + json.dumps({"items": {"anyOf": [{"pattern": _SLOW}] * 600}})


def _chat(**search: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": "x"}],
        "choice": [_TEXT],
        "max_tokens": 80,
        "search": {"method": "best", **search},
    }


@pytest.mark.parametrize(
    "check", [f"regex:{_HARD}", "json:" + json.dumps({"anyOf": [{"pattern": _HARD}] * 6})], ids=["one", "six"]
)
def test_a_pattern_that_is_hard_to_compile_holds_up_nobody(tiny: Server, check: str) -> None:
    with Watch(tiny) as watch:
        assert tiny.post("/api/edits/repair", {"text": "a", "check": check, "budget": 10}).status in (
            200,
            400,
        )
        for name in ("verify", "extract"):
            if name == "verify" or check.startswith("regex"):
                assert tiny.post("/v1/chat/completions", _chat(**{"verify": "json", name: check})).status in (
                    200,
                    400,
                )
    watch.report.check()


def test_a_search_with_slow_verifiers_ends_and_leaves_nothing(tiny: Server) -> None:
    before = standing(tiny)
    body = _chat(n=64, verify=_SLOW_SCHEMA, budget={"seconds": 3})
    with Watch(tiny) as watch:
        assert tiny.post("/v1/chat/completions", body, timeout=120).status == 200
        # The patterns of others are searched at once.
        other = tiny.post("/v1/chat/completions", _chat(n=1, verify="regex:a", extract="regex:a+"))
        assert other.status == 200 and other.json()["search"]["value"] == "a" * 21
    watch.report.check()
    left_behind(tiny, before)
    assert tiny.threads < before[0] + 32


def test_edits_whose_clients_have_left_end(tiny_file: Any) -> None:
    with serving("--kv-memory", "16MB", "--timeout", "40", "--grace", "1", model=tiny_file) as server:
        before = standing(server)
        body = {"text": _TEXT, "check": _SLOW_SCHEMA, "budget": 100_000}
        for _ in range(8):
            with contextlib.suppress(OSError):
                server.post("/api/edits/repair", body, timeout=0.5)
        assert server.post("/api/edits/repair", {"text": "ab", "budget": 10}, timeout=30).status == 200
        left_behind(server, before)
        assert server.held_up() == []


_ODD = (
    {"required": [[]]},
    {"required": [1, None]},
    {"$ref": "#/title", "title": "x"},
    {"properties": {"a": {"$ref": "#/required"}}, "required": ["a"]},
    {"$ref": "#/enum", "enum": [{}]},
    {"$ref": "#/properties", "properties": {"a": {}}},
    {"$ref": "#/const", "const": {"type": "object"}},
    {"multipleOf": 1e-320},
    {"multipleOf": float("nan")},
    {"multipleOf": 0},
    {"minimum": float("inf")},
    {"type": [[]]},
    {"type": [{}]},
)


@pytest.mark.parametrize("schema", _ODD, ids=json.dumps)
def test_an_odd_schema_is_refused_by_its_field(tiny: Server, schema: dict[str, Any]) -> None:
    text = '{"a": [1e308, 1e-308, NaN, Infinity, true, null, "x", {}]}'
    body = {"text": text, "check": "json:" + json.dumps(schema), "budget": 10}
    answer = tiny.post("/api/edits/repair", body)
    assert answer.status == 400 and answer.error["param"] == "check", answer.body


@pytest.mark.parametrize("number", ["1e308", "-1e308", "NaN", "Infinity", "9" * 400, "1e-300"])
def test_any_number_has_a_verdict(tiny: Server, number: str) -> None:
    schema = {"items": {"multipleOf": 1e-300, "minimum": 0}}
    body = {"text": f"[{number}]", "check": "json:" + json.dumps(schema), "budget": 10}
    assert tiny.post("/api/edits/repair", body).status == 200
