"""Many clients with long work of every kind at once: a stream goes on, a completion of one token gets
through, and the work of clients that leave ends.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from attacks.harness import Server, Watch, left_behind, serving, standing
from attacks.limits import FACTOR
from waiting import awake

_CLIENTS = 8
_WORDS = 3500 if FACTOR else 900
_ONE_TOKEN = 4.0 if FACTOR else 20.0  # seconds that a completion of one token may take meanwhile
_SPECIAL = "<|im_start|>"


def _work(kind: str, number: int) -> tuple[str, dict[str, Any]]:
    """One long request of this kind. No two begin alike, so that no cache shortens them."""
    text = f"{number} " + "word " * _WORDS
    if kind == "embeddings":
        return "/v1/embeddings", {"input": [f"{place} {text}" for place in range(20 if FACTOR else 8)]}
    if kind == "prompt scores":
        return "/v1/completions", {"prompt": text, "echo": True, "logprobs": 5, "max_tokens": 0}
    if kind == "special tokens":
        parts = [{"type": "text", "text": _SPECIAL * 10_000} for _ in range(4)]
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": parts}], "max_tokens": 1}
    if kind == "tokenize":
        return "/tokenize", {"prompt": text * 8}
    if kind == "grammars":
        choice = [f"{number} {place} " + "x" * 400 for place in range(900)]
        return "/v1/completions", {"prompt": "x", "choice": choice, "max_tokens": 1}
    if kind == "long prompts":
        return "/v1/completions", {"prompt": text, "max_tokens": 1}
    assert kind == "samples"
    return "/v1/completions", {"prompt": "Once", "n": 6, "max_tokens": 40, "ignore_eos": True}


KINDS = ("embeddings", "prompt scores", "special tokens", "tokenize", "grammars", "long prompts", "samples")


def _client(server: Server, path: str, body: dict[str, Any]) -> socket.socket:
    """A client that has sent its request and waits."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection = socket.create_connection((server.host, server.port), timeout=60)
    connection.sendall(head.encode() + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection


@contextlib.contextmanager
def _clients(server: Server, kind: str) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(_client(server, *_work(kind, number))) for number in range(_CLIENTS)]


@pytest.mark.parametrize("kind", KINDS)
def test_long_work_of_others_holds_up_nobody(real: Server, kind: str) -> None:
    before = standing(real)
    waits = []
    with Watch(real, canary=True) as watch, _clients(real, kind):
        for _ in range(3 if FACTOR else 2):
            began = awake()
            answer = real.post("/v1/completions", {"prompt": "Hi", "max_tokens": 1}, timeout=120)
            waits.append(awake() - began)
            assert answer.status in (200, 429), answer.body[:200]
    watch.report.check(canary=True)
    assert max(waits) < _ONE_TOKEN, f"a completion of one token took {max(waits):.1f} s"
    left_behind(real, before)  # all clients have left: their work ends, and soon


@pytest.fixture(scope="module")
def long_run(_real) -> Iterator[tuple[Server, str]]:
    """A run whose prompt is no longer in the cache: explaining it computes all of it again."""
    words, memory = (1600, "400MB") if FACTOR else (220, "80MB")
    with serving(
        "--kv-memory", memory, "--timeout", "120", "--grace", "1", model="smollm2-135m-instruct"
    ) as server:
        prompt = " ".join(f"w{number}" for number in range(words))
        answer = server.post(
            "/v1/completions", {"prompt": prompt, "max_tokens": 3, "ignore_eos": True}, timeout=300
        )
        assert answer.status == 200, answer.body[:300]
        run = answer.headers["x-glassloop-run"]
        for number in range(3):
            other = " ".join(f"{number} v{place}" for place in range(words // 2))
            server.post("/v1/completions", {"prompt": other, "max_tokens": 1}, timeout=300)
        yield server, run


@pytest.mark.parametrize("look", ["explain/1", "lens/attention", "lens/layers", "explain/2?temperature=0.3"])
def test_looking_at_a_long_run_holds_up_nobody(long_run: tuple[Server, str], look: str) -> None:
    server, run = long_run
    with Watch(server, canary=True) as watch:
        answer = server.get(f"/api/runs/{run}/{look}", timeout=300)
    assert answer.status == 200, answer.body[:300]
    watch.report.check(canary=True)


def test_looking_ends_when_its_client_leaves(long_run: tuple[Server, str]) -> None:
    server, run = long_run
    for _ in range(6):
        with contextlib.suppress(OSError):
            server.get(f"/api/runs/{run}/lens/attention?token=0", timeout=0.2)
    began = awake()
    assert server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 1}, timeout=120).status == 200
    assert awake() - began < _ONE_TOKEN
    assert not any(server.settle().values())


def test_embeddings_have_their_time(_real) -> None:
    flags = ("--kv-memory", "200MB", "--timeout", "2", "--grace", "1")
    with serving(*flags, model="smollm2-135m-instruct") as server:
        path, body = _work("embeddings", 1)
        body["input"] = [f"{number} {text}" for number in range(4) for text in body["input"]]
        began = awake()
        answer = server.post(path, body, timeout=300)
        took = awake() - began
        assert answer.status in (400, 408, 429, 503, 504) and answer.error, answer.status
        assert took < 20, f"{took:.1f} s under --timeout 2"
        assert not any(server.settle(10).values())


def test_long_preparations_have_a_bounded_queue(tiny: Server) -> None:
    """Far more clients than workers: each is answered, some of them with 429, and memory stays."""
    before, statuses = standing(tiny), []

    def one(number: int) -> None:
        path, body = _work("special tokens", number)
        try:
            statuses.append(tiny.post(path, body, timeout=60).status)
        except OSError:
            statuses.append(0)

    with Watch(tiny) as watch:
        threads = [threading.Thread(target=one, args=(number,)) for number in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(90)
    assert len(statuses) == 40 and set(statuses) <= {200, 400, 413, 429}, statuses
    watch.report.check()
    left_behind(tiny, before)
