"""How answers travel: JSON, server-sent events, and noticing that nobody is there any more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

BEAT = 15.0  # seconds without an event, after which a comment says that the connection is alive
STILL_HERE = b": still here\n\n"
T = TypeVar("T")


# Line ends to clients that split a stream of events by Unicode's rules; JSON may escape any character.
_LINE_ENDS = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def to_json(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if not text.isascii():
        for character, escaped in _LINE_ENDS.items():
            text = text.replace(character, escaped)
    return text.encode("utf-8", "backslashreplace")  # a lone surrogate is escaped, as JSON has it


def to_json_in_pieces(value: dict[str, Any]) -> bytes:
    """The same for an object that may be large. The items of its lists (or iterators) are encoded one by one,
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
    """An event without a name, as OpenAI sends it."""
    return b"data: " + to_json(value) + b"\n\n"


def event(name: str, value: Any, number: int | None = None) -> bytes:
    number_line = b"" if number is None else f"id: {number}\n".encode()
    return number_line + f"event: {name}\n".encode() + data(value)


class JSON(Response):
    media_type = "application/json"

    def render(self, content: dict[str, Any]) -> bytes:
        return to_json_in_pieces(content)


class EventStream(Response):
    """Sends what a generator makes. When the client goes away the generator is closed at once; however it
    ends, `release` is called."""

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        headers: dict[str, str] | None = None,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._chunks = chunks
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        producer = asyncio.create_task(self._produce(send))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({producer, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _stop(producer)
            await _stop(gone)
            self._release()
        if producer.done() and not producer.cancelled():
            producer.result()

    async def _produce(self, send: Send) -> None:
        async with aclosing(self._chunks) as chunks:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class ClientGone(Exception):
    """Nobody waits for this answer any more."""


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of some work, which is cancelled if the client goes away before."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_gone(request.receive))
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
    """Cancel a task and see it through."""
    if not task.done():
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task
