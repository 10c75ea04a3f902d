"""The tokens of a request as they come, for a thread or a coroutine that waits for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from queue import SimpleQueue
from typing import Protocol

from glassloop.engine.request import Listener, Request
from glassloop.record.run import Run
from glassloop.record.token import Token


class Submitter(Protocol):
    """What computes requests: the thread of an engine, or another engine."""

    def submit(self, request: Request) -> None: ...

    def cancel(self, request: Request, wait: bool = False) -> None: ...

    def check_may_wait(self) -> None:
        """Raises on a thread on which waiting for a request would never end."""


def follow(engine: Submitter, request: Request) -> Iterator[Token]:
    """Yields the tokens of a request. Leaving the iteration early cancels the request."""
    engine.check_may_wait()
    queue: SimpleQueue[tuple[Run, Token | None]] = SimpleQueue()
    with _Submitted(engine, request, lambda *event: queue.put(event), wait=True) as submitted:
        while submitted.open_runs:
            token = submitted.token_of(*queue.get())
            if token is not None:
                yield token


async def afollow(engine: Submitter, request: Request) -> AsyncIterator[Token]:
    """Yields the tokens of a request to a coroutine. Leaving the iteration early cancels the request."""
    import asyncio  # half as heavy as all else that one token needs

    engine.check_may_wait()
    queue: asyncio.Queue[tuple[Run, Token | None]] = asyncio.Queue()
    home = asyncio.get_running_loop()

    def tell(run: Run, token: Token | None) -> None:
        home.call_soon_threadsafe(queue.put_nowait, (run, token))

    with _Submitted(engine, request, tell, wait=False) as submitted:
        while submitted.open_runs:
            token = submitted.token_of(*await queue.get())
            if token is not None:
                yield token


class _Submitted:
    """A request in the engine, within a `with` block that cancels it if it has not ended by then."""

    def __init__(self, engine: Submitter, request: Request, listener: Listener, wait: bool) -> None:
        """`wait` says whether leaving the block waits for the cancellation."""
        self._engine, self._request, self._wait = engine, request, wait
        self.open_runs = len(request.runs)
        request.listener = listener

    def __enter__(self) -> _Submitted:
        self._engine.submit(self._request)
        return self

    def __exit__(self, *unused: object) -> None:
        if not self._request.ended:
            self._engine.cancel(self._request, self._wait)

    def token_of(self, run: Run, token: Token | None) -> Token | None:
        """Returns the token that the listener was told of, or None for the end of a run. Raises its error."""
        if token is None:
            self.open_runs -= 1
            raise_error(run)
        return token


def raise_error(run: Run) -> None:
    if run.error is not None:
        raise run.error
