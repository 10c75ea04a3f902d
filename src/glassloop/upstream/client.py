"""HTTP to another engine: requests with a bounded answer, and streams of events. Responses are untrusted:
their size and time are bounded, and network errors become `GlassloopError`s.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx2

from glassloop.engine.protocol import Unavailable
from glassloop.engine.thread import Busy
from glassloop.errors import GlassloopError
from glassloop.util.shown import printable, shown

MOST_ANSWER = 2 << 20  # bytes of an answer that is not a stream, unless more is asked for
_MOST_ERROR = 256 << 10  # bytes of an answer that says what was wrong
_MOST_LINE = 4 << 20  # bytes of one line of a stream
_MOST_STREAM = 1 << 30  # bytes of a stream, and
_MORE, _PER_TOKEN = 1 << 20, 16 << 10  # how many there are, and for each token, in one of so many tokens
_BYTES = 8  # of an answer for each of its lists and objects: those take far more memory than their bytes
_FEW = 1000  # lists and objects that there may be in any case
_MOST_MESSAGE = 500  # characters of an error message that are passed on
_CONNECT_SECONDS = 10.0
_SILENT_SECONDS = 300.0  # without a byte


class UpstreamError(GlassloopError):
    """The upstream refused a request, or answered what cannot be understood."""


class Refused(UpstreamError):
    """The upstream refused a request with a status that says so (4xx)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def checked_url(url: str) -> str:
    """Returns the URL of an API without a slash at its end; raises if it is not one of http or https."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise GlassloopError.about(
            "upstream", f"is {shown(url)}; a URL such as http://localhost:8000/v1 is expected"
        )
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise GlassloopError.about(
            "upstream",
            "has a user, a query or a fragment; a plain URL is expected: a key belongs into the environment"
            " variable GLASSLOOP_UPSTREAM_KEY",
        )
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


class Client:
    """Sends requests to one API. For one event loop."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url
        self._key = key
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http = httpx2.AsyncClient(
            headers={**headers, "accept-encoding": "identity"},
            timeout=httpx2.Timeout(_SILENT_SECONDS, connect=_CONNECT_SECONDS),
            # Each request has a connection of its own: a server may close one that is kept at any time, and
            # the request that is sent then would fail.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
            follow_redirects=False,  # a redirect would take the key elsewhere
        )

    async def get(self, path: str) -> Any:
        """Returns the JSON of an answer."""
        return await self._answer("GET", path, None)

    async def post(
        self, path: str, body: Mapping[str, Any], *, above: bool = False, most: int = MOST_ANSWER
    ) -> Any:
        """Returns the JSON of an answer of at most so many bytes. With `above`, the path is not below /v1."""
        base = self.url.removesuffix("/v1") if above else self.url
        return await self._answer("POST", path, body, base, most)

    async def stream(self, path: str, body: Mapping[str, Any], tokens: int) -> AsyncGenerator[Any, None]:
        """Yields the JSON of each event of a stream of so many tokens, up to its end, which may come too
        early."""
        most = min(_MOST_STREAM, _MORE + tokens * _PER_TOKEN)
        with self._in_words():
            async with self._http.stream("POST", self.url + path, json=body) as answer:
                await self._check(answer)
                kind = answer.headers.get("content-type", "")
                if "event-stream" not in kind:
                    raise UpstreamError(
                        f"the upstream answered with {printable(kind, 80) or 'no type'}, not a stream"
                    )
                async for line in _lines(answer, most):
                    if not line.startswith(b"data:"):
                        continue  # a comment, or another field of an event
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        return
                    event = _parsed(data)
                    self._raise_error_in(event)
                    yield event

    async def close(self) -> None:
        await self._http.aclose()

    async def _answer(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        base: str | None = None,
        most: int = MOST_ANSWER,
    ) -> Any:
        with self._in_words():
            async with self._http.stream(method, (base or self.url) + path, json=body) as answer:
                await self._check(answer)
                data = await _read(answer, most)
        return await asyncio.to_thread(_parsed, data)

    async def _check(self, answer: httpx2.Response) -> None:
        """Raises if the status of an answer is not that of a success."""
        status = answer.status_code
        if 200 <= status < 300:
            return
        if 300 <= status < 400:
            raise Refused(status, "the upstream redirects to another address; name that address")
        message = self.message_of(await _read(answer, _MOST_ERROR))
        if status == 429:
            raise Busy(f"the upstream has too many requests: {message}")
        if status >= 500:
            raise Unavailable(f"the upstream failed with status {status}: {message}")
        if status in (401, 403):
            message += "; a key is read from the environment variable GLASSLOOP_UPSTREAM_KEY"
        raise Refused(status, f"the upstream refused with status {status}: {message}")

    def message_of(self, data: bytes) -> str:
        """Returns the message of an error answer, in one line and without the key."""
        text = data.decode("utf-8", "replace")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            error = value.get("error", value)
            error = error.get("message", error) if isinstance(error, dict) else error
            text = error if isinstance(error, str) else json.dumps(error)
        if self._key:
            text = text.replace(self._key, "…")
        return printable(text.strip(), _MOST_MESSAGE) or "no reason given"

    def _raise_error_in(self, event: Any) -> None:
        """Raises the error that a stream reports in an event."""
        if isinstance(event, dict) and event.get("error") is not None:
            message = self.message_of(json.dumps(event).encode())
            raise UpstreamError(f"the upstream failed in the middle of its answer: {message}")

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """Makes errors of the network one of ours."""
        try:
            yield
        except httpx2.TimeoutException as error:
            what = "accept a connection" if isinstance(error, httpx2.ConnectTimeout) else "send anything"
            raise Unavailable(f"the upstream at {self.url} did not {what} in time") from None
        except httpx2.ConnectError as error:
            reason = printable(str(error), 200)
            raise Unavailable(f"the upstream at {self.url} cannot be reached: {reason}") from None
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL) as error:
            reason = printable(str(error) or type(error).__name__, 200)
            raise Unavailable(f"the upstream at {self.url} closed the connection: {reason}") from None


async def _read(answer: httpx2.Response, most: int) -> bytes:
    """Returns the body of an answer; raises if it is too long."""
    parts, size = [], 0
    async for part in answer.aiter_raw():
        size += len(part)
        if size > most:
            raise UpstreamError(f"the upstream's answer has more than {most} bytes")
        parts.append(part)
    return b"".join(parts)


async def _lines(answer: httpx2.Response, most: int) -> AsyncIterator[bytes]:
    """Yields the lines of a stream of at most so many bytes, each of a bounded length. Lines end as in the
    definition of event streams: with a line feed, a carriage return, or both."""
    begun, length, total = list[bytes](), 0, 0  # the parts of a line that has no end yet
    async for part in answer.aiter_raw():
        total += len(part)
        if total > most:
            raise UpstreamError(f"the upstream's stream has more than {most} bytes")
        first, *others = part.replace(b"\r", b"\n").split(b"\n")
        begun.append(first)
        length = _checked_length(length + len(first))
        for line in others:
            if length:
                yield b"".join(begun)
            begun, length = [line], _checked_length(len(line))


def _checked_length(length: int) -> int:
    if length > _MOST_LINE:
        raise UpstreamError(f"a line of the upstream's stream has more than {_MOST_LINE} bytes")
    return length


def _parsed(data: bytes) -> Any:
    count, most = data.count(b"[") + data.count(b"{"), _FEW + len(data) // _BYTES
    if count > most:
        raise UpstreamError(
            f"the upstream's answer has {count} lists and objects in {len(data)} bytes; at most {most} are"
            " expected"
        )
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        start = printable(data[:80].decode("utf-8", "replace"), 80)
        raise UpstreamError(f"the upstream's answer is not JSON: {start}") from None
