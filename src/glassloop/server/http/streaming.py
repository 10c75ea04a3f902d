"""How answers are sent: as JSON or as server-sent events, until the client disconnects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from pydantic import ConfigDict, with_config
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

EVENTS = "text/event-stream"
KEEP_ALIVE = 15.0  # seconds without an event, after which a comment says that the connection is alive
STILL_HERE = b": still here\n\n"
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {EVENTS: {}}}}  # for OpenAPI
T = TypeVar("T")
# Decorates the TypedDict of a whole answer, which is the dictionary that is sent and describes it in the
# OpenAPI document. Its schema is made when the document is, since all together take long at the start.
api_answer = with_config(ConfigDict(defer_build=True))

# Line ends to clients that split a stream of events by Unicode's rules; JSON may escape any character.
_LINE_ENDS = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def to_json(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if not text.isascii():
        for character, escaped in _LINE_ENDS.items():
            text = text.replace(character, escaped)
    return text.encode("utf-8", "backslashreplace")  # a lone surrogate is escaped, as JSON requires


def to_json_in_pieces(value: Mapping[str, Any]) -> bytes:
    """Encodes an object that may be large. The items of its lists (or iterators) are encoded one by one,
    since encoding holds Python's lock: other threads go on in between, and items are made when needed."""
    parts = []
    for name, each in value.items():
        if isinstance(each, (list, Iterator)):
            encoded = b"[" + b",".join(map(to_json, each)) + b"]"
        else:
            encoded = to_json(each)
        parts.append(to_json(name) + b":" + encoded)
    return b"{" + b",".join(parts) + b"}"


def data(value: Any) -> bytes:
    """Returns an event without a name, as OpenAI sends it."""
    return b"data: " + to_json(value) + b"\n\n"


def event(name: str, value: Any, number: int | None = None) -> bytes:
    number_line = b"" if number is None else f"id: {number}\n".encode()
    return number_line + f"event: {name}\n".encode() + data(value)


class JSON(Response):
    media_type = "application/json"

    def render(self, content: Mapping[str, Any]) -> bytes:
        return to_json_in_pieces(content)


class EventStream(Response):
    """Sends what a generator yields. When the client disconnects the generator is closed at once; however it
    ends, `release` is called."""

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        headers: dict[str, str] | None = None,
        release: Callable[[], None] = lambda: None,
        media_type: str = EVENTS,
    ) -> None:
        super().__init__(
            media_type=media_type,
            headers={"cache-control": "no-store", "x-accel-buffering": "no", **(headers or {})},
        )
        del self.headers["content-length"]
        self._chunks = chunks
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(ClientGone):
                await unless_gone(receive, self._produce(send))
        finally:
            self._release()

    async def _produce(self, send: Send) -> None:
        async with aclosing(self._chunks) as chunks:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for chunk in chunks:
                if chunk:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class ClientGone(Exception):
    """The client has disconnected before its answer."""


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """Returns the result of some work, which is cancelled if the client disconnects before."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await _stop(task)
        await _stop(gone)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stop(task: asyncio.Future[Any]) -> None:
    """Cancels a task that is not done and waits until it has ended."""
    if not task.done():
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task
