"""An upstream may answer anything: what cannot be understood is refused in words, what came before is kept,
and the key appears nowhere."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import isnan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop import Sampling
from glassloop.engine.protocol import Unavailable
from glassloop.engine.request import Request
from glassloop.errors import GlassloopError, TraceError
from glassloop.record.format.glass_file import from_bytes, to_bytes
from glassloop.record.origin import LeftToRight
from glassloop.record.origin import OtherEngine as Told
from glassloop.record.run import Run
from glassloop.upstream import UpstreamEngine, client
from glassloop.upstream.answer import Answer
from glassloop.upstream.client import UpstreamError, checked_url
from glassloop.upstream.reading import read_part, read_prompt_logprobs

KEY = "sk-very-secret-0123456789"
MODELS = {"object": "list", "data": [{"id": "m", "owned_by": "somebody"}]}
END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def chunk(text: str, *entries: dict, **choice: object) -> dict:
    logprobs = {"content": list(entries)} if entries else None
    return {"choices": [{"index": 0, "delta": {"content": text}, "logprobs": logprobs, **choice}]}


def entry(token: str, logprob: object = -0.5, data: object = None, top: object = ()) -> dict:
    return {"token": token, "logprob": logprob, "bytes": data, "top_logprobs": list(top)}


class Upstream(ThreadingHTTPServer):
    """A server that answers every request for a stream with the same lines."""

    daemon_threads = True

    def __init__(self, lines: list[bytes], status: int = 200, kind: str = "text/event-stream") -> None:
        self.lines, self.status, self.kind = lines, status, kind
        self.closed = threading.Event()  # a client has closed its connection
        self.seen: list[tuple[dict, dict]] = []  # headers and body of each request
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    server: Upstream

    def do_GET(self) -> None:
        self._begin(200, "application/json")
        self.wfile.write(json.dumps(MODELS).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.seen.append((dict(self.headers), body))
        self._begin(self.server.status, self.server.kind)
        for line in self.server.lines:
            if line == b"wait":
                time.sleep(600)
            if line == b"pause":
                time.sleep(0.02)
                continue
            try:
                self.wfile.write(line)
                self.wfile.flush()
            except OSError:
                self.server.closed.set()
                return

    def _begin(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.end_headers()

    def log_message(self, *unused: object) -> None:
        pass


@contextmanager
def upstream(*events: object, status: int = 200, kind: str = "text/event-stream") -> Iterator[tuple]:
    """A server that streams these events (bytes as they are) and the engine in front of it."""
    lines = [each if isinstance(each, bytes) else f"data: {json.dumps(each)}\n\n".encode() for each in events]
    server = Upstream(lines, status, kind)
    try:
        with UpstreamEngine(server.url, key=KEY) as engine:
            yield server, engine
    finally:
        server.shutdown()
        server.server_close()


def run_of(engine: UpstreamEngine, **options: object):
    """Returns the run that an answer leaves, whatever its end."""
    request = engine.prepare_chat([{"role": "user", "content": "Hi"}], Sampling(**options))
    try:
        for _ in engine.follow(request):
            pass
    except GlassloopError:
        pass
    return request.runs[0]


HI = chunk("Hi", entry("Hi"))


@pytest.mark.parametrize(
    "bad, words",
    [
        (chunk("x", entry("x", float("nan"))), "logprob is nan;"),
        (chunk("x", entry("x", 3.5)), "a number up to 0"),
        (chunk("x", entry("x", "-1")), "a number up to 0"),
        (chunk("x", entry("x", True)), "a number up to 0"),
        (chunk("x", entry("x", data=[256])), "numbers from 0 to 255"),
        (chunk("x", entry("x", data="x")), "bytes is 'x';"),
        (chunk("x", {"logprob": -1}), "token is None;"),
        ({"choices": [{"delta": {"content": 5}}]}, "text is 5;"),
        ({"choices": 3}, "choices is 3;"),
        ([1, 2], "chunk is [1, 2];"),
        (b"data: {nonsense\n\n", "not JSON: {nonsense"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "100000 lists and objects"),
        (b"data: " + b"[" * 1000 + b"\n\n", "not JSON"),
        ({"error": {"message": f"no memory, {KEY}"}}, "failed in the middle of its answer: no memory, …"),
        (b"", "ended in the middle of the answer"),
        (b"data: [DONE]\n\n", "ended in the middle of the answer"),
    ],
)
def test_what_cannot_be_understood_is_an_error_and_what_came_is_kept(bad, words):
    with upstream(HI, bad) as (_, engine):
        run = run_of(engine, max_tokens=9)
    assert run.text == "Hi" and run.finish_reason == "error"
    assert words in str(run.error) and "1 tokens had come, which are kept" in str(run.error)
    (again,) = from_bytes(to_bytes([run]))
    assert again.text == "Hi" and again.finish_reason == "error"


def test_a_line_without_an_end_is_bounded(monkeypatch):
    monkeypatch.setattr(client, "_MOST_LINE", 10_000)
    with upstream(HI, *[b"data: " + b"x" * 5000] * 20) as (_, engine):
        run = run_of(engine)
    assert run.text == "Hi" and "a line of the upstream's stream has more than 10000 bytes" in str(run.error)


def test_more_tokens_than_were_asked_for_are_an_error():
    with upstream(*[HI] * 50, END) as (_, engine):
        run = run_of(engine, max_tokens=5)
    assert "more than the 5 tokens" in str(run.error) and len(run.tokens) == 6


def test_text_without_tokens_is_bounded_by_the_tokens_that_were_asked_for():
    with upstream(HI, *[chunk("x" * 1000)] * 50, END) as (_, engine):
        run = run_of(engine, max_tokens=5)
    assert "more characters than are expected: 64 for each of 5 tokens" in str(run.error)
    assert run.text.startswith("Hix") and len(run.text) <= 64 * 5 + 4096
    with upstream(HI, *[chunk("x" * 1000)] * 3, chunk("y" * 500, entry("y")), END) as (_, engine):
        assert run_of(engine, max_tokens=5).text == "Hi" + "x" * 3000 + "y" * 500


def test_a_stream_is_bounded_by_the_tokens_that_were_asked_for(monkeypatch):
    monkeypatch.setattr(client, "_MORE", 10_000)
    monkeypatch.setattr(client, "_PER_TOKEN", 1000)
    with upstream(HI, *[b": " + b"x" * 900 + b"\n"] * 100, END) as (_, engine):
        assert "stream has more than 15000 bytes" in str(run_of(engine, max_tokens=5).error)
        assert run_of(engine, max_tokens=500).finish_reason == "stop"


@pytest.mark.parametrize("size", [2, 64])
def test_an_answer_of_lists_is_refused_before_it_is_parsed(size, monkeypatch):
    seen = []
    monkeypatch.setattr(
        client.json, "loads", lambda data, loads=json.loads: seen.append(len(data)) or loads(data)
    )
    answer = b"[" + b"[]," * ((size << 20) // 3 - 100) + b"[]]"
    with (
        upstream(answer, kind="application/json") as (_, engine),
        pytest.raises(UpstreamError, match=r"lists and objects in|more than \d+ bytes"),
    ):
        engine.prepare("a", Sampling(prompt_logprobs=2))
    assert max(seen, default=0) < 1 << 20


@given(st.lists(st.sampled_from(["a", "bc", "\n", "\r", "\r\n", ""])), st.randoms())
@settings(max_examples=100, deadline=None)
def test_lines_do_not_depend_on_how_they_come(parts, random):
    data = "".join(parts).encode()
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(3))
    pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    class Response:
        async def aiter_raw(self):
            for piece in pieces:
                yield piece

    async def lines():
        return [line async for line in client._lines(Response(), 1 << 20)]

    ended = data[: max(data.rfind(b"\n"), data.rfind(b"\r")) + 1]  # a line without an end is none
    assert asyncio.run(lines()) == [line for line in ended.replace(b"\r", b"\n").split(b"\n") if line]


def test_a_slow_upstream_ends_at_the_timeout_of_the_request():
    with upstream(HI, b"wait") as (_, engine):
        run = run_of(engine, timeout=2)
    assert run.text == "Hi" and run.finish_reason == "timeout"


def test_a_cancelled_run_closes_the_connection_at_once():
    """The upstream must not go on computing for nobody."""
    with upstream(HI, *[b": still here\n\n", b"pause"] * 20_000) as (server, engine):
        request = engine.prepare_chat([{"role": "user", "content": "Hi"}], Sampling())
        for _ in engine.follow(request):
            break
        assert server.closed.wait(60)


def test_a_request_that_is_cancelled_before_it_begins_ends():
    with upstream(HI, b"wait") as (_, engine):
        for _ in range(20):
            request = engine.prepare_chat([{"role": "user", "content": "Hi"}], Sampling(n=2))
            told = []
            request.listener = lambda run, token, told=told: told.append((run, token))
            engine.submit(request)
            engine.cancel(request, wait=True)
            assert request.ended and [token for _, token in told if token is None] == [None, None]


def test_a_cancelled_run_keeps_what_came():
    with upstream(HI, b"wait") as (_, engine):
        request = engine.prepare_chat([{"role": "user", "content": "Hi"}], Sampling())
        for _ in engine.follow(request):
            break
        assert request.runs[0].finish_reason == "cancelled" and request.runs[0].text == "Hi"


@pytest.mark.parametrize(
    "status, words",
    [
        (400, "refused with status 400: bad …"),
        (401, "GLASSLOOP_UPSTREAM_KEY"),
        (500, "failed"),
        (302, "redirects"),
    ],
)
def test_a_status_that_is_no_success_is_an_error_without_the_key(status, words):
    answer = json.dumps({"error": {"message": f"bad {KEY}"}}).encode()
    with upstream(answer, status=status, kind="application/json") as (server, engine):
        run = run_of(engine)
    assert words in str(run.error) and KEY not in str(run.error)
    assert server.seen[0][0]["authorization"] == f"Bearer {KEY}"


def test_the_key_is_in_no_record():
    with upstream(HI, END) as (_, engine):
        run = run_of(engine)
    assert KEY.encode() not in to_bytes([run]) and KEY not in json.dumps(run.to_dict())
    assert KEY not in repr(run) + engine.upstream


def test_an_upstream_that_gives_no_log_probabilities_gives_a_text_in_parts():
    with upstream(chunk("Hel"), chunk("lo"), END) as (_, engine):
        run = run_of(engine)
    assert run.text == "Hello" and run.finish_reason == "stop" and not run.upstream.logprobs
    assert all(isnan(token.raw_logprob) for token in run.tokens)
    assert run.usage.completion_tokens is None and run.to_dict()["usage"]["prompt_tokens"] is None
    assert "gave no probability" in run.explain(0).sentence


def test_bytes_that_are_no_text_are_kept():
    """A character that takes two tokens: the text comes with the second one."""
    smile = "🙂".encode()
    first = entry("\ufffd", data=list(smile[:2]), top=[entry("bytes:\\xf0\\x9f", -0.5)])
    with upstream(chunk("", first), chunk("🙂", entry("\ufffd", data=list(smile[2:]))), END) as (_, engine):
        run = run_of(engine)
        assert run.text == "🙂" and b"".join(token.bytes for token in run.tokens) == smile
        assert run.tokens[0].id == run.tokens[0].alternatives[0].id  # the same bytes
        with pytest.raises(UpstreamError, match="within a character"):
            engine.fork(run, 1)
        with pytest.raises(UpstreamError, match="not known to continue an answer of a chat"):
            engine.fork(run, 2)


@pytest.mark.parametrize("shown", ["\ufffd", "<0xF0><0x9F>", "bytes:\\xf0\\x9f"])
def test_a_part_of_a_character_cannot_be_forced(shown):
    with upstream(chunk("a", entry("a", top=[entry("a"), entry(shown, -1)])), END) as (_, engine):
        run = run_of(engine)
        with pytest.raises(GlassloopError, match="a part of a character"):
            engine.fork(run, 0, token=run.tokens[0].alternatives[1].id)


def test_bytes_are_not_read_off_a_text():
    """Servers have ways of their own to write a part of a character."""
    with upstream(chunk("", entry("<0xF0><0x9F>")), chunk("🙂", entry("<0x99><0x82>")), END) as (_, engine):
        run = run_of(engine)
    assert [token.bytes for token in run.tokens] == [b"", b""] and run.text == "🙂"


def test_a_server_that_cannot_be_reached_is_an_error():
    with pytest.raises(Unavailable, match="cannot be reached"):
        UpstreamEngine("http://127.0.0.1:9/v1")


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://a/b", "http://", "http://a:0", "http://[::1", "http://a:99999"]
)
def test_what_is_no_url_is_refused(url):
    with pytest.raises(GlassloopError, match="upstream is"):
        checked_url(url)


@pytest.mark.parametrize("url", ["http://user:pass@a/v1", "https://a/v1?key=1", "https://a/#b"])
def test_a_url_with_a_secret_in_it_is_refused(url):
    with pytest.raises(GlassloopError, match="GLASSLOOP_UPSTREAM_KEY") as raised:
        checked_url(url)
    assert "pass" not in str(raised.value)


numbers = st.integers() | st.floats() | st.just(-(10**400))
words = st.sampled_from(
    ["choices", "delta", "content", "logprobs", "tokens", "token", "logprob", "bytes", "text"]
)
more = st.sampled_from(
    ["top_logprobs", "token_logprobs", "usage", "finish_reason", "message", "prompt_tokens"]
)
anything = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(words | more | st.text(max_size=3), inner, max_size=6)
    ),
    max_leaves=30,
)


@given(st.one_of(anything, st.fixed_dictionaries({"choices": st.lists(anything, min_size=1, max_size=2)})))
@settings(max_examples=100)
def test_any_chunk_is_read_or_refused_in_words(value):
    try:
        part = read_part(value)
    except UpstreamError as error:
        assert len(str(error)) < 1000
    else:
        assert all(each.logprob is None or each.logprob <= 1e-3 for each in part.entries)


@given(anything, anything)
@settings(max_examples=50)
def test_any_log_probabilities_of_a_prompt_are_read_or_refused_in_words(told, ids):
    for answer, tokenized in ((told, ids), ({"prompt_logprobs": told}, {"tokens": ids})):
        with suppress(UpstreamError):
            read_prompt_logprobs(answer, tokenized)


@given(
    st.lists(
        st.tuples(st.text(max_size=4), st.lists(st.text(min_size=1, max_size=3), max_size=3)), max_size=8
    )
)
@settings(max_examples=60)
def test_the_text_of_a_run_is_that_of_all_chunks(chunks):
    """Whatever the tokens say: the record of tokens must not change the text."""
    run = Run("m", [1], 0, 0, prompt="a", origin=Told("http://a", "", "completions"))
    request = Request([1], Sampling(), [run])
    answer = Answer(request, run)
    for text, tokens in chunks:
        run.tokens += answer.read(read_part(chunk(text, *[entry(token) for token in tokens])))
    answer.close()
    expected = "".join(text for text, _ in chunks)
    assert run.text == expected.encode("utf-8", "replace").decode()
    run.finish_reason = "stop"
    (again,) = from_bytes(to_bytes([run]))
    assert again.text == run.text and again.tokens == run.tokens


def test_only_a_run_of_another_engine_may_have_unknown_numbers():
    run = Run("m", [1], 0, 0, prompt="a", origin=Told("http://a", "", "completions"), finish_reason="stop")
    run.tokens = Answer(Request([1], Sampling(), [run]), run).read(read_part(HI))
    assert from_bytes(to_bytes([run]))[0].tokens == run.tokens
    run.origin = LeftToRight()
    with pytest.raises(TraceError, match="column entropy has nan"):
        from_bytes(to_bytes([run]))
