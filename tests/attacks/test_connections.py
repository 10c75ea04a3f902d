"""What can be done before a key is shown: headers without end, long URLs, requests that never become
complete, many connections. Bytes, seconds and connections are bounded, and others are served meanwhile.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Iterator

import pytest
from attacks.harness import Server, Watch, serving
from attacks.limits import FACTOR
from waiting import awake, wait_until

_COMPLETE = 45.0  # seconds within which a request must have become complete; 30 are promised


@pytest.fixture(scope="module")
def keyed(tiny_file) -> Iterator[Server]:
    with serving("--kv-memory", "16MB", "--api-key", "secret", "--grace", "1", model=tiny_file) as server:
        yield server


def _open(server: Server, data: bytes) -> socket.socket:
    connection = socket.create_connection((server.host, server.port), timeout=120)
    connection.sendall(data)
    return connection


def _is_closed(connection: socket.socket, seconds: float) -> bool:
    """Whether the server ends it, with or without an answer."""
    connection.settimeout(seconds)
    try:
        while connection.recv(1 << 16):
            pass
        return True
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def _pour(server: Server, start: bytes, piece: bytes, most: int) -> int:
    """How many bytes it takes before it ends the connection."""
    sent = 0
    with socket.create_connection((server.host, server.port), timeout=120) as connection:
        with contextlib.suppress(ConnectionError, TimeoutError):
            connection.sendall(start)
            while sent < most:
                connection.sendall(piece)
                sent += len(piece)
        # What lies in buffers of the system was not taken by the server; it has hung up by now.
        if sent < most or _is_closed(connection, 2):
            return min(sent, most - 1)
    return sent


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\n", b"X-Header: and its value\r\n" * 4000),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ", b"y" * 100_000),
        (b"GET /", b"a" * 100_000),
        (b"GET /health?", b"a=b&" * 25_000),
        (b"", b"G" * 100_000),
    ],
    ids=["header lines", "header value", "path", "query", "method"],
)
def test_headers_are_bounded(keyed: Server, start: bytes, piece: bytes) -> None:
    most = 100_000_000 if FACTOR else 16_000_000
    with Watch(keyed) as watch:
        taken = _pour(keyed, start, piece, most)
    report = watch.report.check()
    assert taken < most, "it takes headers without end"
    assert report.grown < 32 << 20, f"memory grew by {report.grown >> 20} MB"


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"\r\n", b"\r\n" * 50_000),
        (b"POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x" * 100_000),
        (b"POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 20_000),
    ],
    ids=["empty lines", "chunk extension", "small chunks"],
)
def test_what_is_no_request_yet_is_not_kept(keyed: Server, start: bytes, piece: bytes) -> None:
    with Watch(keyed) as watch:
        _pour(keyed, start, piece, 16_000_000)
    report = watch.report.check()
    assert report.grown < 32 << 20, f"memory grew by {report.grown >> 20} MB"


def test_small_requests_in_a_row_are_not_one_large_one(tiny: Server) -> None:
    """The bound is on one request, not on a connection."""
    connection = tiny.connect()
    for _ in range(150):
        connection.request("GET", "/health", headers={"x-padding": "y" * 1000})
        assert connection.getresponse().read()
    connection.close()


def test_a_long_but_decent_url_is_served(tiny: Server) -> None:
    assert tiny.get("/health?x=" + "a" * 20_000).status == 200


@pytest.mark.skipif(not FACTOR, reason="takes half a minute of waiting; make fuzz")
@pytest.mark.parametrize("slow", ["nothing", "half a line", "half headers", "a byte a second", "half a body"])
def test_a_request_becomes_complete_or_ends(keyed: Server, slow: str) -> None:
    start = {
        "nothing": b"",
        "half a line": b"GET /hea",
        "half headers": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ",
        "a byte a second": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ",
        "half a body": b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n"
        b"Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{",
    }[slow]
    with _open(keyed, start) as connection:
        until = time.monotonic() + _COMPLETE
        closed = False
        while not closed and time.monotonic() < until:
            closed = _is_closed(connection, 1)
            if slow == "a byte a second" and not closed:
                with contextlib.suppress(ConnectionError):
                    connection.sendall(b"y")
        assert closed, f"still open after {_COMPLETE:.0f} s"


def test_half_requests_do_not_keep_others_out(keyed: Server) -> None:
    count = 400 if FACTOR else 150
    before = keyed.files
    held = []
    with Watch(keyed) as watch, contextlib.ExitStack() as stack:
        for number in range(count):
            starts = (b"", b"GET /", b"GET /health HTTP/1.1\r\nHost: localhost\r\n", b"POST /v1")
            with contextlib.suppress(ConnectionError, TimeoutError):
                held.append(stack.enter_context(_open(keyed, starts[number % len(starts)])))
        time.sleep(0.3)
        assert keyed.get("/health").status == 200
        key = {"authorization": "Bearer secret"}
        assert keyed.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, headers=key).status == 200
    watch.report.check()
    wait_until(lambda: keyed.files <= before + 4)


def test_many_connections_are_bounded(tiny_file) -> None:
    """Far more than it may have open: it lives, and it serves again once they are gone."""
    with serving("--kv-memory", "16MB", model=tiny_file) as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (256, 256))
        with contextlib.ExitStack() as stack:
            for _ in range(400):
                with contextlib.suppress(ConnectionError, TimeoutError, OSError):
                    stack.enter_context(_open(server, b"GET /"))
            time.sleep(0.5)
            assert server.alive
        until = awake() + 60
        status = 0
        while status != 200 and awake() < until:
            with contextlib.suppress(OSError):
                status = server.get("/health", timeout=5).status
            time.sleep(0.1)
        assert status == 200


def test_bodies_that_never_finish_are_not_held_without_a_key(keyed: Server) -> None:
    """Without a key nothing of a body is kept."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: 4000000\r\n\r\n"
    with Watch(keyed) as watch, contextlib.ExitStack() as stack:
        for _ in range(20):
            with contextlib.suppress(ConnectionError, TimeoutError):
                connection = stack.enter_context(_open(keyed, head))
                connection.settimeout(2)
                connection.sendall(b"[" * 2_000_000)
        time.sleep(0.3)
    report = watch.report.check()
    assert report.grown < 64 << 20, f"memory grew by {report.grown >> 20} MB"


def test_malformed_requests_are_refused(tiny: Server) -> None:
    """Smuggling, downgrades, what is no HTTP at all: an error or a closed connection, never two answers."""
    host = b"Host: localhost\r\n"
    body = b"Content-Length: 5\r\n\r\nhelloGET /metrics HTTP/1.1\r\n" + host + b"\r\n"
    for raw in (
        b"XXXX /health HTTP/1.1\r\n" + host + b"\r\n",
        b"GET /health HTTP/9.9\r\n" + host + b"\r\n",
        b"GET /health\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64,
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET /health HTTP/1.1\r\n Host: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost localhost\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n" + body,
        b"POST /tokenize HTTP/1.1\r\n" + host + b"Content-Length: -1\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\n" + host + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"POST /tokenize HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\nx",
        b"GET /health HTTP/1.1\r\n" + host + b"X: a\0b\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ):
        answer = tiny.raw(raw + b"\r\n", 3)
        assert tiny.alive and b"glassloop_" not in answer, raw
        assert not answer or answer.split(b" ", 2)[1][:1] in b"24", (raw, answer[:200])
    assert tiny.get("/health").status == 200
