"""`--server URL`: the terminal asks a server on another machine, and tells in one line what goes wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cli.terminal import run
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop import GlassloopError, Run, Store
from glassloop.decode.explain_read import explanation_of

from .conftest import serving

KEY = "a-key-of-the-server"
AUTHORIZED = {"authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("remote")


@pytest.fixture(scope="module")
def far(place):
    """A server whose store the terminal does not have."""
    flags = ("--store", str(place / "far.db"), "--kv-memory", "200MB")
    with serving(*flags, env={"GLASSLOOP_API_KEY": KEY}) as server:
        yield server


@pytest.fixture(scope="module")
def answer(far) -> str:
    body = {
        "messages": [{"role": "user", "content": "Say hi."}],
        "max_tokens": 8,
        "seed": 3,
        "temperature": 1,
    }
    return far.post("/v1/chat/completions", body, headers=AUTHORIZED).json()["id"]


@pytest.fixture
def said(far, place):
    def call(*command: str, code: int = 0) -> str:
        near = {"GLASSLOOP_STORE": str(place / "near.db"), "GLASSLOOP_API_KEY": KEY}
        done = run(*command, "--server", far.url, **near)
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    return call


def test_reading_commands_show_what_the_server_has(said, answer, place):
    own = answer.removeprefix("chatcmpl-")
    there = {"GLASSLOOP_STORE": str(place / "far.db")}
    for command in (
        ("explain", own),
        ("explain", own, "--step", "3", "--temperature", "0.2", "--shown", "3"),
        ("explain", own, "--step", "-1", "--new-luck", "--json"),
        ("explain", own, "--step", "user", "--prompt"),
        ("runs", "show", own),
        ("runs", "worst", own, "--json"),
    ):
        here = run(*command, **there)
        assert said(*command) == here.stdout, here.stderr
        assert said(*(answer if part == own else part for part in command)) == here.stdout
    assert own[:8] in said("runs", "list") and said("explain", own[:8]) == said("explain", "last")
    listed = json.loads(said("runs", "list", "--json"))
    assert own in [each["id"] for each in listed]
    said("runs", "export", answer, str(place / "one.glass"))
    assert Run.load(place / "one.glass").id == own
    assert not Store(place / "near.db").list()


def test_a_fork_is_made_and_kept_there(said, answer, place):
    text = said("fork", answer, "--at", "2", "--token", "hello", "-n", "6")
    made = Store(place / "far.db").get("last")
    assert made.parent == answer.removeprefix("chatcmpl-") and made.tokens[2].text.strip() == "hello"
    assert text == made.text + "\n" and not Store(place / "near.db").list()
    assert "a token that was given by the caller" in said("diff", answer, "last")
    assert (
        json.loads(said("fork", answer, "--at", "1", "--text", " over there", "--json"))["reason"] == "edited"
    )


def test_what_a_server_cannot_do_is_refused_by_name(said, answer, place):
    for command, says in (
        (("explain", answer, "--model", "x"), "--model is given with --server"),
        (("explain", answer, "--ops", "reference"), "--ops is given with --server"),
        (("explain", answer, "--step", "99"), "at is 99; a token from 0 to"),
        (("explain", answer, "--step", "qux"), "no token of the answer has this text"),
        (("explain", "chatcmpl-" + "0" * 16), "there is no run '0000000000000000'"),
        (("explain", "chatcmpl-"), "there is no run"),
        (("runs", "export", answer, str(place / "x.glass"), "--tree"), "--tree is given with --server"),
        (("fork", answer, "--at", "0", "--no-store"), "--no-store is given with --server"),
        (("fork", answer, "--at", "0", "--samples", "2"), "--samples is given with --server"),
        (("fork", answer, "--at", "1", "--token", "no token"), "no single token"),
    ):
        error = said(*command, code=2)
        assert says in error and error.count("\n") == 1


def test_keys_and_addresses_that_are_wrong(far, answer, place):
    (place / "key").write_text(KEY + "\n")
    near = {"GLASSLOOP_STORE": str(place / "near.db"), "GLASSLOOP_API_KEY": ""}
    there = ("runs", "worst", answer, "--server", far.url)
    assert run(*there, "--api-key-file", str(place / "key"), **near).returncode == 0
    assert run(*there, "--api-key", KEY, **near).returncode == 0
    for command, says in (
        (there, "refused the API key, or expects one"),
        ((*there, "--api-key", "wrong"), "refused the API key, or expects one"),
        ((*there, "--api-key-file", str(place / "none")), "No such file"),
        ((*there, "--api-key", "a", "--api-key-file", "b"), "are both given"),
        (("runs", "worst", answer, "--api-key", KEY), "is given without --server"),
        (("runs", "worst", answer, "--server", "host:8000"), "a URL such as https://host:8000 is expected"),
        (("runs", "worst", answer, "--server", "http://127.0.0.1:1"), "cannot be reached"),
    ):
        done = run(*command, **near)
        assert done.returncode == 2 and says in done.stderr and done.stderr.count("\n") == 1
        assert KEY not in done.stderr


@contextmanager
def answering(data: bytes, status: int = 200) -> Iterator[str]:
    """A server that gives the same answer to everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        *((b"<html>nginx</html>", status) for status in (200, 302, 404, 502)),
        (b"[" * 100_000, 200),
        (b'{"runs": [{"id": "\x1b[31m"}]}', 200),
        (b'{"runs": [7]}', 200),
        (b'{"runs": [{}]}', 200),
        (b'{"runs": [{"id": 7}]}', 200),
        (b'{"error": {"message": "\\u001b[2J\\n two lines", "param": null}}', 400),
        (b'{"error": "text"}', 500),
    ],
)
def test_answers_of_something_else_are_one_line(data, status):
    with answering(data, status) as url:
        for command in (("runs", "list"), ("explain", "0" * 16), ("runs", "show", "last")):
            done = run(*command, "--server", url)
            assert done.returncode == 2, done.stdout
            assert done.stderr.count("\n") == 1 and "\x1b" not in done.stderr


# ── explanations as JSON ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def explained(llm):
    run = llm.generate(
        "The capital of France is", max_tokens=4, seed=1, temperature=1.2, top_k=40, logprobs=3
    )
    return [
        run.explain(1),
        run.explain(2, temperature=0),
        run.explain(1, of="prompt"),
        run.explain(0, top_p=0.5),
    ]


def test_an_explanation_is_read_as_it_was_written(explained):
    for each in explained:
        assert explanation_of(json.loads(json.dumps(each.to_dict()))) == each


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_an_explanation_with_anything_in_it_is_read_or_refused(explained, data):
    plain = json.loads(json.dumps(data.draw(st.sampled_from(explained)).to_dict()))
    parts = [plain]
    while data.draw(st.booleans()):
        inner = parts[-1][data.draw(st.sampled_from(list(_keys(parts[-1]))))]
        if not _keys(inner):
            break
        parts.append(inner)
    anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just([]) | st.just({})
    parts[-1][data.draw(st.sampled_from(list(_keys(parts[-1]))))] = data.draw(anything)
    with suppress(GlassloopError):
        str(explanation_of(plain))


def _keys(value: object) -> list:
    return (
        list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    )
