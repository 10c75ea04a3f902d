"""Streams and the end of a server: line separators in texts, signals, readers that stand still, a log that
nobody reads.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from attacks.harness import Server, serving
from waiting import awake, wait_until

_LONG = {"prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True, "stream": True}
_SEPARATORS = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e"


def _stream(
    server: Server, body: dict[str, object], path: str = "/v1/completions"
) -> http.client.HTTPResponse:
    connection = server.connect()
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    return connection.getresponse()


def test_line_separators_never_stand_raw_in_an_event(tiny: Server) -> None:
    """Clients split lines where Unicode does; an event must survive that. The text is forced by a grammar."""
    text = f"a{_SEPARATORS}b"
    body = {"prompt": "x", "max_tokens": 60, "stream": True, "choice": [text]}
    raw = _stream(tiny, body).read().decode()
    assert raw.splitlines() == raw.replace("\r\n", "\n").removesuffix("\n").split("\n")
    events = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
    assert "".join(event["choices"][0]["text"] for event in events if event["choices"]) == text
    whole = tiny.post("/v1/completions", {**body, "stream": False}).json()["choices"][0]["text"]
    assert whole == text


def test_run_events_survive_line_separators(tiny: Server) -> None:
    text = f"a{_SEPARATORS}b"
    sampling = {"choice": [text], "max_tokens": 60}
    run = tiny.post("/api/runs", {"prompt": f"p{_SEPARATORS}", "sampling": sampling}).json()["runs"][0]
    tiny.settle()
    for path in (f"/api/runs/{run['id']}/events", f"/api/trees/{run['tree']}/events?close=true"):
        raw = tiny.get(path).body.decode()
        assert raw.splitlines() == raw.removesuffix("\n").split("\n"), path
        for line in raw.splitlines():
            if line.startswith("data: "):
                json.loads(line[6:])


def test_two_interrupts_end_streams_with_a_word(tiny_file: Path) -> None:
    with serving("--kv-memory", "16MB", "--grace", "20", model="smollm2-135m-instruct") as server:
        answer = _stream(server, _LONG)
        answer.readline()
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        server.process.send_signal(signal.SIGINT)
        lines = [line for line in answer.read().split(b"\n") if line.startswith(b"data: ")]
        assert json.loads(lines[-1][6:])["error"]["code"] == "shutting_down"
        assert server.end(seconds=120) == 0
        assert "Traceback" not in server.log_text()


def test_an_end_during_embeddings_is_in_time_and_in_words() -> None:
    with serving("--kv-memory", "200MB", "--grace", "2", model="smollm2-135m-instruct") as server:
        answers: list[object] = []

        def embed() -> None:
            body = {"input": [f"{number} " + "word " * 3000 for number in range(40)]}
            with contextlib.suppress(OSError, http.client.HTTPException):
                answers.append(server.post("/v1/embeddings", body))

        thread = threading.Thread(target=embed)
        thread.start()
        wait_until(lambda: server.get("/health").json()["running"] > 0)
        began = awake()
        assert server.end(seconds=120) == 0
        took = awake() - began
        thread.join(120)
        assert took < 60, f"ended after {took:.1f} s with --grace 2"  # the embeddings take minutes
        assert "Traceback" not in server.log_text()
        assert answers and answers[0].status == 503 and answers[0].error["code"] == "shutting_down"


def test_readers_that_stand_still_pin_no_runs(tiny_file: Path) -> None:
    """Runs of clients that read nothing are not kept beyond `--keep`, and end when their time is up."""
    flags = ("--kv-memory", "16MB", "--keep", "3", "--timeout", "2", "--grace", "1")
    with serving(*flags, model=tiny_file) as server, contextlib.ExitStack() as stack:
        body = json.dumps({**_LONG, "n": 16, "logprobs": 20}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        for _ in range(3):
            stalled = stack.enter_context(socket.socket())
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.connect((server.host, server.port))
            stalled.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        time.sleep(1)
        until = awake() + 20
        while awake() < until:
            server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
            if len(server.get("/api/runs?limit=1000").json()["runs"]) <= 3:
                break
            time.sleep(0.3)
        assert len(server.get("/api/runs?limit=1000").json()["runs"]) <= 3
        assert not any(server.settle(10).values())


@contextlib.contextmanager
def _with_log_in_a_pipe(model: Path) -> Iterator[tuple[int, int]]:
    """A server's port, and the reading end of its log, which the caller closes."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "glassloop", "serve", "--port", "0", "--model", str(model)]
    process = subprocess.Popen(
        [*command, "--kv-memory", "16MB", "--no-store"], stderr=writing, stdout=subprocess.DEVNULL
    )
    os.close(writing)
    try:
        first = b""
        while b"\n" not in first:
            first += os.read(reading, 1)
        yield int(first.split(b"http://127.0.0.1:")[1].split(b" ")[0]), reading
    finally:
        process.kill()
        process.wait()


def test_a_log_that_nobody_reads_stops_nothing(tiny_file: Path) -> None:
    with _with_log_in_a_pipe(tiny_file) as (port, reading):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for _ in range(1500):  # far more lines than a pipe holds
            connection.request("GET", "/health")
            assert connection.getresponse().read()
        connection.close()
        os.close(reading)


def test_a_pause_of_the_process_loses_no_token(tiny_file: Path) -> None:
    with serving("--kv-memory", "16MB", model=tiny_file) as server:
        answer = _stream(server, {**_LONG, "max_tokens": 300})
        answer.readline()
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(1)
        server.process.send_signal(signal.SIGCONT)
        assert answer.read().endswith(b"data: [DONE]\n\n")


def test_a_log_whose_reader_is_gone_stops_nothing(tiny_file: Path) -> None:
    with _with_log_in_a_pipe(tiny_file) as (port, reading):
        os.close(reading)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for _ in range(6):
            connection.request("GET", "/health")
            answer = connection.getresponse()
            assert answer.status == 200 and answer.read()
        connection.close()
