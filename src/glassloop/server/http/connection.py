"""One HTTP connection with bounds on what it may cost before a request is complete.

uvicorn's protocol accepts headers of any size, waits for ever for the rest of a request and keeps any number
of idle connections. These bounds apply before anything is known about the client, so they hold for clients
without an API key too.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from glassloop.server.http.alarm import Alarm
from glassloop.server.http.errors import APIError

_LINGER = 2.0  # seconds for which the rest of a refused request is still read


@dataclass(frozen=True)
class ConnectionLimits:
    header_bytes: int = 64 << 10  # request line and headers
    request_bytes: int = 17 << 20  # everything after the headers, chunk framing and trailers included
    request_seconds: float = 30.0  # from the first byte (or the connection) until the request is complete
    stalled_seconds: float = 30.0  # that a client may leave its answer unread once the buffers are full
    connections: int = 1024


class ClientConnection(HttpToolsProtocol):
    """uvicorn's protocol for one connection, within `ConnectionLimits`."""

    def __init__(self, *args: Any, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(*args, **options)
        self._limits = limits
        self._in_headers = True  # also before the first byte of a request
        self._discarding = False  # the rest of a request that is far too long
        self._received = 0  # bytes of the headers, or of what follows them
        self._began = 0.0
        self._deadline: Alarm | None = None
        self._stalled: Alarm | None = None

    # ── the connection ─────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        full = len(self.connections) >= self._limits.connections
        super().connection_made(transport)
        self._began = self.loop.time()
        if full and not self._make_room():
            self._refuse(APIError(503, "too many connections are open; try again later", code="overloaded"))
            return
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        if self._stalled is not None:
            self._stalled.cancel()
        super().connection_lost(exc)

    def _make_room(self) -> bool:
        """Closes the connection that has waited longest without a request to answer. Returns whether there
        was one."""
        others = [
            each for each in self.connections if isinstance(each, ClientConnection) and each is not self
        ]
        oldest = min(filter(_is_idle, others), key=lambda each: each._began, default=None)
        if oldest is not None:
            oldest.transport.abort()
        return oldest is not None

    # ── what is received ───────────────────────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        if self._deadline is None and self._in_headers:
            self._arm()
        self._received += len(data)
        if not self._in_headers and self._received > self._limits.request_bytes:
            if not self._discarding:
                # It was refused long ago. Reading on for a moment lets the client see the answer.
                self._discarding = True
                self._disarm()
                self._deadline = Alarm(self.loop, _LINGER, self.transport.abort)
            return
        super().data_received(data)
        if (
            self._in_headers
            and self._received > self._limits.header_bytes
            and not self.transport.is_closing()
        ):
            self._refuse_headers()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        self._in_headers, self._received = False, 0
        if size > self._limits.header_bytes:
            self._refuse_headers()
            raise ValueError("headers are too large")  # ends the parser; the answer is on its way
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._disarm()
        self._in_headers, self._received = True, 0

    # ── time ───────────────────────────────────────────────────────────────────────────────────────────────

    def _arm(self) -> None:
        self._disarm()
        self._deadline = Alarm(self.loop, self._limits.request_seconds, self._too_slow)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        if self.flow.read_paused:  # the server itself has stopped reading
            self._arm()
        elif self._in_headers and _is_idle(self):
            self._refuse(APIError(408, "the request was not complete in time", code="request_timeout"))
        else:  # there may be an answer already, or half of one
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = Alarm(self.loop, self._limits.stalled_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    # ── answers before there is a request ──────────────────────────────────────────────────────────────────

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            self._refuse(APIError(400, "this is not a valid HTTP request", code="invalid_http"))

    def _refuse_headers(self) -> None:
        most = self._limits.header_bytes
        self._refuse(APIError(431, f"the headers are larger than {most} bytes", code="headers_too_large"))

    def _refuse(self, error: APIError) -> None:
        body = json.dumps(error.body).encode()
        status = HTTPStatus(error.status)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def _is_idle(connection: ClientConnection) -> bool:
    """Returns whether no request is being answered on this connection."""
    return connection.cycle is None or connection.cycle.response_complete
