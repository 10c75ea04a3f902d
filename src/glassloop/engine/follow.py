"""The tokens of a request as they come, for a thread or a coroutine that waits for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from queue import SimpleQueue

from glassloop.engine.request import Request
from glassloop.engine.thread import EngineThread
from glassloop.trace.run import Run
from glassloop.trace.token import Token


def follow(engine: EngineThread, request: Request) -> Iterator[Token]:
    """Leaving it early cancels the request."""
    queue: SimpleQueue[tuple[Run, Token | None]] = SimpleQueue()
    request.listener = lambda run, token: queue.put((run, token))
    engine.submit(request)
    left = len(request.runs)
    try:
        while left:
            run, token = queue.get()
            if token is None:
                left -= 1
                raise_error(run)
            else:
                yield token
    finally:
        if not request.ended:
            engine.cancel(request, wait=True)


async def afollow(engine: EngineThread, request: Request) -> AsyncIterator[Token]:
    import asyncio  # half as heavy as all else that one token needs

    queue: asyncio.Queue[tuple[Run, Token | None]] = asyncio.Queue()
    home = asyncio.get_running_loop()

    def tell(run: Run, token: Token | None) -> None:
        home.call_soon_threadsafe(queue.put_nowait, (run, token))

    request.listener = tell
    engine.submit(request)
    left = len(request.runs)
    try:
        while left:
            run, token = await queue.get()
            if token is None:
                left -= 1
                raise_error(run)
            else:
                yield token
    finally:
        if not request.ended:
            engine.cancel(request)


def raise_error(run: Run) -> None:
    if run.error is not None:
        raise run.error
