"""Bodies as strangers send them: any JSON is a valid body or an error in words, at a bounded cost."""

from __future__ import annotations

import asyncio
import json
import threading
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from glassloop.engine.thread import Busy
from glassloop.server.http.bodies import MOST_CONTAINERS, Bodies, is_json, parse
from glassloop.server.http.errors import APIError
from glassloop.server.http.streaming import to_json_in_pieces
from glassloop.server.openai.chat_choices import ChatBody
from glassloop.server.openai.completions import CompletionBody
from glassloop.server.openai.embeddings import EmbeddingBody
from glassloop.server.openai.responses import ResponsesBody
from glassloop.server.openai.tokens import DetokenizeBody, TokenizeBody
from glassloop.server.operation.logs import Log
from glassloop.server.operation.workers import Pools, Workers
from glassloop.server.studio.runs import ForkBody, StartBody, StepBody, TextForkBody

BODIES = (
    ChatBody,
    CompletionBody,
    ResponsesBody,
    EmbeddingBody,
    TokenizeBody,
    DetokenizeBody,
    StartBody,
    ForkBody,
    TextForkBody,
    StepBody,
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["user", "text", "json_schema", "1", 2**63, 10**400]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "x"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("model", BODIES, ids=lambda model: model.__name__)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_json_is_a_body_or_an_error_in_words(model, data):
    names = st.sampled_from([*model.model_fields, "nonsense"])
    body = data.draw(st.dictionaries(names, values, max_size=4) | values)
    try:
        made = parse(json.dumps(body).encode(), model)
    except APIError as error:
        assert error.status == 400 and error.message and len(error.message) < 1000
    else:
        assert isinstance(made, model)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b'{"prompt": [' + b"null," * 1_500_000 + b"null]}", "prompt"),
        (b'{"prompt": [' + b"[]," * 2_600_000 + b"[]]}", "lists and objects"),
        (b'{"prompt": [' + b'"ab",' * 1_500_000 + b'"a"]}', "prompt"),
        (b'{"prompt": [' + b"1," * 3_900_000 + b"1]}", "prompt"),
        (b'{"prompt": [' + b"1.5," * 1_900_000 + b"1]}", "prompt"),
        (b'{"prompt": "x", "stop": [' + b"1," * 3_900_000 + b"1]}", "stop"),
        (b"{" + b",".join(b'"k%d":0' % i for i in range(600_000)) + b"}", "keys"),
        (
            b'{"prompt":"x","logit_bias":{' + b",".join(b'"%d":{}' % i for i in range(90_000)) + b"}}",
            "logit_bias",
        ),
        (b"[" * 4_000_000, "lists and objects"),
        (b"[" * 90_000, "nested"),
    ],
    ids=["nulls", "lists", "texts", "ids", "floats", "stop", "keys", "biases", "deep", "nested"],
)
def test_the_first_error_is_enough(body, named):
    """What is kept of a body of 8 MB while it is refused stays far below 300 MB."""
    tracemalloc.start()
    try:
        with pytest.raises(APIError, match=named):
            parse(body, CompletionBody)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200 << 20


@pytest.mark.parametrize("text", ["x", "\\ud800", "\\ud83d\\ude00"])
@pytest.mark.parametrize(
    ("value", "what"),
    [("9" * 5000, "a number that is too long"), ("[" * 5000 + "]" * 5000, "nested too deeply")],
    ids=["digits", "levels"],
)
@pytest.mark.parametrize("form", ["{}", "[{}]", '{{"a": 1, "b": {}}}'])
def test_what_the_parser_refuses_is_named_by_its_field(text, value, what, form):
    """Texts before it do not matter, even if they are refused themselves."""
    body = f'{{"prompt": "{text}", "stop": {form.format(value)}, "n": 1}}'
    with pytest.raises(APIError, match=f"^stop .*{what}") as refused:
        parse(body.encode(), CompletionBody)
    assert refused.value.param == "stop"


@pytest.mark.parametrize("open_", ["[", '{"a":'])
def test_a_body_both_too_large_and_too_deep_names_its_field(open_):
    body = '{"prompt": "x", "stop": ' + open_ * (MOST_CONTAINERS + 5)
    with pytest.raises(APIError, match=r"^stop is too large") as refused:
        parse(body.encode(), CompletionBody)
    assert refused.value.param == "stop"


def test_brackets_in_texts_are_allowed_up_to_the_same_number():
    assert parse(json.dumps({"prompt": "[" * (MOST_CONTAINERS - 1)}).encode(), CompletionBody)


@pytest.mark.parametrize(
    ("kind", "allowed"),
    [
        ("application/json", True),
        ("application/json; charset=utf-8", True),
        ("APPLICATION/JSON", True),
        ("application/problem+json", True),
        ("text/plain", False),
        ("application/x-www-form-urlencoded", False),
        ("multipart/form-data; boundary=json", False),
        ("text/json", False),
        ("", False),
        (None, False),
    ],
)
def test_only_json_is_json(kind, allowed):
    assert is_json(kind) is allowed


def test_a_pool_refuses_what_does_not_fit_and_drops_what_was_left():
    pool = Workers("tests", threads=1, waiting=1)
    go, calls = threading.Event(), []

    async def scenario() -> None:
        running = asyncio.create_task(pool.run(go.wait))
        waiting = asyncio.create_task(pool.run(calls.append, "left"))
        await asyncio.sleep(0.05)
        with pytest.raises(Busy):
            await pool.run(calls.append, "refused")
        waiting.cancel()
        await asyncio.sleep(0.05)
        after = asyncio.create_task(pool.run(calls.append, "after"))  # there is room again
        go.set()
        await asyncio.gather(running, after)

    asyncio.run(scenario())
    assert calls == ["after"]


def test_a_log_that_is_not_read_holds_nothing_up():
    class Stuck:
        def __init__(self) -> None:
            self.go, self.lines = threading.Event(), []

        def write(self, text: str) -> None:
            self.go.wait()
            self.lines += text.splitlines()

        def flush(self) -> None: ...

    stream = Stuck()
    log = Log(stream=stream)
    for number in range(30_000):
        log("line", number=number)
    stream.go.set()
    log.close(10)
    kept = [json.loads(line) for line in stream.lines]
    dropped = sum(line["dropped"] for line in kept if line["event"] == "log")
    assert len(kept) < 25_000 and len([line for line in kept if line["event"] == "line"]) + dropped == 30_000


@given(st.dictionaries(st.text(), values, max_size=4))
@settings(max_examples=100, deadline=None)
def test_json_in_pieces_is_the_same_json(value):
    finite = json.loads(
        json.dumps(value).replace("NaN", "0").replace("-Infinity", "0").replace("Infinity", "0")
    )
    made = to_json_in_pieces(
        {name: iter(each) if isinstance(each, list) else each for name, each in finite.items()}
    )
    assert json.loads(made) == finite
    assert not any(end in made.decode() for end in "\x85\u2028\u2029")


def test_small_bodies_pass_while_large_ones_are_under_way():
    """Clients that hold all the room for large bodies keep no small request out."""
    most = 1 << 20
    bodies = Bodies(most, Pools())

    def sent(*parts: bytes, more: bool) -> Request:
        messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]

        async def receive():
            if messages:
                return messages.pop(0)
            await asyncio.sleep(0 if not more else 60)
            return {"type": "http.request", "body": b"", "more_body": False}

        return Request({"type": "http", "headers": []}, receive)

    async def length(data: bytes) -> int:
        return len(data)

    async def scenario() -> None:
        held = [asyncio.create_task(bodies.receive(sent(bytes(most), more=True), length)) for _ in range(8)]
        await asyncio.sleep(0.05)
        assert await bodies.receive(sent(b"x" * 1000, more=False), length) == 1000
        with pytest.raises(APIError, match="large bodies"):
            await bodies.receive(sent(bytes(most), more=False), length)
        for each in held:
            each.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        assert await bodies.receive(sent(bytes(most), more=False), length) == most  # all of it was given back

    asyncio.run(scenario())


def _lists(schema: object) -> Iterator[dict]:
    """Every list in pydantic's own schema of a model."""
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if each.get("type") == "list":
                yield each
            waiting.extend(each.values())
        elif isinstance(each, (list, tuple)):
            waiting.extend(each)


@pytest.mark.parametrize("model", BODIES, ids=lambda model: model.__name__)
def test_every_list_has_a_bound_and_ends_at_its_first_error(model):
    for each in _lists(model.__pydantic_core_schema__):
        assert each.get("fail_fast") and each.get("max_length") is not None, each
