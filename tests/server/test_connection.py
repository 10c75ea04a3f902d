"""What a connection may cost before there is a request: bytes, seconds, places. A small application stands
behind the real protocol, so that the limits can be small too."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
import uvicorn

from glassloop.server.http.alarm import Alarm
from glassloop.server.http.connection import ClientConnection, ConnectionLimits

LIMITS = ConnectionLimits(
    header_bytes=2000, request_bytes=5000, request_seconds=0.5, stalled_seconds=0.5, connections=4
)


class Application:
    """Answers with the length of the body, or at /flood with more than a client's buffers hold."""

    def __init__(self) -> None:
        self.left = threading.Event()  # a flood has ended

    async def __call__(self, scope, receive, send) -> None:
        size, more = 0, scope["type"] == "http"
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            size, more = size + len(message["body"]), message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        with contextlib.suppress(OSError):
            while scope["path"] == "/flood":
                await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
                if self._is_gone(await self._peek(receive)):
                    self.left.set()
                    return
        body = str(size).encode()
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _peek(self, receive):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.001):
                return await receive()
        return None

    def _is_gone(self, message) -> bool:
        return message is not None and message["type"] == "http.disconnect"


@pytest.fixture
def served():
    application = Application()
    config = uvicorn.Config(
        application,
        port=0,
        http=partial(ClientConnection, limits=LIMITS),
        ws="none",
        lifespan="off",
        log_config=None,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    listening = config.bind_socket()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield listening.getsockname()[1], application
    server.should_exit = True
    thread.join(120)


def ask(port: int, data: bytes, *, then: bytes = b"") -> bytes:
    """All that the server answers until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as client:
        with contextlib.suppress(OSError):
            client.sendall(data)
            if then:
                client.sendall(then)
        found = b""
        with contextlib.suppress(ConnectionResetError):
            while part := client.recv(65536):
                found += part
        return found


GOOD = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def test_a_plain_request_is_answered(served):
    port, _ = served
    assert ask(port, GOOD).startswith(b"HTTP/1.1 200")
    body = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3000\r\n\r\n" + b"x" * 3000
    assert ask(port, body).endswith(b"3000\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X-Many: 1\r\n" * 300 + b"\r\n",
        b"GET / HTTP/1.1\r\nX-One: " + b"a" * 3000,
        b"GET / HTTP/1.1\r\n" + b"a" * 3000,
        b"\r\n" * 1500,
    ],
    ids=["url", "many", "one", "name", "nothing"],
)
def test_headers_are_bounded(served, head):
    port, _ = served
    status, _, rest = ask(port, head).partition(b"\r\n")
    assert status in (b"HTTP/1.1 431 Request Header Fields Too Large", b"HTTP/1.1 400 Bad Request")
    error = json.loads(rest.partition(b"\r\n\r\n")[2])["error"]
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET",
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
    ],
    ids=["nothing", "method", "headers", "body", "chunk"],
)
def test_a_request_that_is_never_finished_is_ended(served, begun):
    port, _ = served
    answer = ask(port, begun)  # returns because the server closes
    assert not answer or answer.startswith(b"HTTP/1.1 408")
    assert ask(port, GOOD).startswith(b"HTTP/1.1 200")


def test_a_limit_that_is_late_begins_again():
    """The server stood still, so it has not read what its client sent meanwhile."""

    class Loop:
        now = 0.0

        def time(self) -> float:
            return self.now

        def call_later(self, seconds: float, ring: Callable[[], None]) -> None:
            self.due, self.ring = self.now + seconds, ring

    loop, rung = Loop(), []
    Alarm(loop, 30.0, lambda: rung.append(loop.now))
    for late, expected in ((20.0, []), (0.5, []), (0.1, [110.6])):
        loop.now = loop.due + late
        loop.ring()
        assert rung == expected


def test_a_server_that_is_always_late_still_ends_requests():
    class Loop:
        now, rings = 0.0, 0

        def time(self) -> float:
            return self.now

        def call_later(self, seconds: float, ring: Callable[[], None]) -> None:
            self.now += seconds + 1
            self.rings += 1
            if self.rings < 10:
                self.ring = ring

    loop, rung = Loop(), []
    Alarm(loop, 30.0, lambda: rung.append(loop.rings))
    while not rung and loop.rings < 10:
        loop.ring()
    assert rung == [4]


def test_an_idle_connection_cannot_be_kept_by_empty_lines(served):
    port, _ = served
    with socket.create_connection(("127.0.0.1", port), timeout=120) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        with contextlib.suppress(OSError):
            for _ in range(100):
                client.sendall(b"\r\n")
                time.sleep(0.02)
                client.settimeout(0.001)
                with contextlib.suppress(TimeoutError):
                    if not client.recv(1000):
                        return
        client.settimeout(120)
        with contextlib.suppress(ConnectionResetError):
            while client.recv(1000):
                pass


def test_a_body_without_end_is_cut(served):
    port, _ = served
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = ask(port, head, then=b"1\r\na\r\n" * 100_000)
    assert not answer.startswith(b"HTTP/1.1 200")


def test_new_connections_find_room_among_idle_ones(served):
    port, _ = served
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(12)]
    assert ask(port, GOOD).startswith(b"HTTP/1.1 200")
    for each in idle:
        each.close()


def test_an_answer_that_is_not_read_is_given_up(served):
    port, application = served
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /flood HTTP/1.1\r\nHost: x\r\n\r\n")
        assert application.left.wait(120)
