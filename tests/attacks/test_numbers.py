"""Every number of every body and query, far out of range or not a number at all: an answer that names the
field, or one that is right; never a 500.
"""

from __future__ import annotations

from urllib.parse import quote

import pytest
from attacks.harness import Server
from attacks.limits import FACTOR
from attacks.routes import GOOD, Document, Field, put
from hostile.values import NUMBERS, dumps

_JSON = {"content-type": "application/json"}


def _run(server: Server) -> str:
    body = {"prompt": "x", "sampling": {"max_tokens": 2, "seed": 3}}
    run: str = server.post("/api/runs", body).json()["runs"][0]["id"]
    server.settle()
    return run


def _some(place: int) -> tuple[object, ...]:
    """A third of the numbers, another one for each field in turn; all of them in the long run."""
    return NUMBERS if FACTOR else NUMBERS[place % 3 :: 3]


def _numeric(field: Field) -> bool:
    return bool(field.types & {"integer", "number"})


@pytest.mark.parametrize("path", GOOD)
def test_numbers_of_bodies(tiny: Server, path: str) -> None:
    document, run = Document(tiny.get("/openapi.json").json()), _run(tiny)
    route = next(route for route in document.with_body if route.path == path)
    troubles = []
    for place, field in enumerate(filter(_numeric, document.fields(route))):
        if sum(isinstance(part, str) for part in field.path) > 2:
            continue
        for number in _some(place):
            body = put(route.good(), field.path, number)
            if "stream" not in body and path.startswith("/v1/c"):
                body["timeout"] = body.get("timeout", 2)
            answer = tiny.post(path.replace("{id}", run), dumps(body), headers=_JSON)
            tried = f"{'.'.join(map(str, field.path))} = {str(number)[:40]}"
            if answer.status >= 500:
                troubles.append(f"{tried}: {answer.status} {answer.body[:200]!r}")
            elif answer.status == 400:
                error = answer.error
                said = f"{error['param']} {error['message']}"
                if not any(str(part) in said for part in field.path if isinstance(part, str)):
                    troubles.append(f"{tried}: {said}")
                if len(said) > 600:
                    troubles.append(f"{tried}: a message of {len(said)} characters")
    assert not troubles, "\n".join(troubles[:30])


def test_numbers_of_queries(tiny: Server) -> None:
    run = _run(tiny)
    options = [each["name"] for each in tiny.get("/api/info").json()["options"]]
    troubles = []
    for place, name in enumerate(options):
        for number in _some(place):
            answer = tiny.get(f"/api/runs/{run}/explain/0?{name}={quote(dumps(number).decode())}")
            if answer.status >= 500:
                troubles.append(f"explain {name} = {str(number)[:40]}: {answer.status}")
            elif answer.status == 400:
                said = f"{answer.error['param']} {answer.error['message']}"
                if name not in said:
                    troubles.append(f"explain {name} = {str(number)[:40]}: {said[:200]}")
    for path in (
        *("/api/runs?limit={}", f"/api/runs/{run}?alternatives={{}}", f"/api/runs/{run}/explain/{{}}"),
        *(f"/api/runs/{run}/lens/attention?token={{}}", f"/api/runs/{run}/lens/attention?layer={{}}"),
        *(f"/api/runs/{run}/lens/layers?count={{}}", f"/api/runs/{run}/events?after={{}}"),
    ):
        for number in NUMBERS:
            answer = tiny.get(path.format(quote(dumps(number).decode())))
            if answer.status >= 500:
                troubles.append(f"{path} {str(number)[:40]}: {answer.status}")
    assert not troubles, "\n".join(troubles[:30])


@pytest.mark.parametrize(
    "name", ["logit_bias", "stop_token_ids", "allowed_token_ids", "bad_words", "stop", "stages"]
)
def test_a_value_of_another_kind_in_a_query(tiny: Server, name: str) -> None:
    run = _run(tiny)
    for value in (
        "7",
        "true",
        "null",
        "[[[]]]",
        '{"a":[]}',
        "[1e999]",
        '["x",null]',
        '"x"',
        "[" * 5000,
        '{"1":"x"}',
    ):
        answer = tiny.get(f"/api/runs/{run}/explain/0?{name}={quote(value)}")
        assert answer.status < 500, f"{name}={value[:30]}: {answer.body[:200]!r}"


def test_whole_numbers_mean_what_they_say(tiny: Server) -> None:
    """A count that cannot be reached is not reached: nothing wraps around."""
    for name in ("stop_on_repetition", "no_repeat_ngram_size", "dry_allowed_length", "top_k"):
        plain = tiny.post("/v1/completions", {"prompt": "x", "max_tokens": 12, "seed": 5, "ignore_eos": True})
        for number in (2**31 - 1, 2**63 - 1, 2**63, 2**64):
            body = {"prompt": "x", "max_tokens": 12, "seed": 5, "ignore_eos": True, name: number}
            answer = tiny.post("/v1/completions", body)
            if answer.status == 200:
                assert answer.json()["choices"] == plain.json()["choices"], (name, number)
            else:
                assert answer.status == 400 and name in answer.error["message"], (name, number)


def test_surrogates_are_refused_everywhere(tiny: Server) -> None:
    for path, body in GOOD.items():
        for field in ("metadata", "user", "model", "prompt", "input", "text", "stop", "tree"):
            value = {"\ud800": "\udfff"} if field == "metadata" else "a\ud800"
            answer = tiny.post(path.replace("{id}", "0" * 16), {**body, field: value})
            assert answer.status < 500, (path, field, answer.body)
