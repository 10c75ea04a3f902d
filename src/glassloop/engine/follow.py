"""Waiting for requests: for their tokens as they come, for each request as it ends, or for all of them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from queue import Empty, SimpleQueue

from glassloop.engine.deadline import Deadline
from glassloop.engine.protocol import Engine
from glassloop.engine.request import Listener, Request, ignore
from glassloop.record.run import Run
from glassloop.record.token import Token

_SHOW_FROM = 8  # prompts, from which on a bar is worth its line
_LOOK_UP = 0.1  # seconds between two looks at the deadline


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while waiting. What was generated until then is in `runs`."""

    def __init__(self, runs: list[Run]) -> None:
        super().__init__(f"interrupted after {sum(len(run.tokens) for run in runs)} tokens")
        self.runs = runs


def follow(engine: Engine, request: Request) -> Iterator[Token]:
    """Yields the tokens of a request. Leaving the iteration early cancels the request."""
    engine.check_may_wait()
    queue: SimpleQueue[tuple[Run, Token | None]] = SimpleQueue()
    with _Submitted(engine, request, lambda *event: queue.put(event), wait=True) as submitted:
        while submitted.open_runs:
            token = submitted.token_of(*queue.get())
            if token is not None:
                yield token


async def afollow(engine: Engine, request: Request) -> AsyncIterator[Token]:
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

    def __init__(self, engine: Engine, request: Request, listener: Listener, wait: bool) -> None:
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


def first_run(request: Request) -> Run:
    """Returns the first run of a request that has ended; raises its error."""
    raise_error(request.runs[0])
    return request.runs[0]


def as_completed(
    engine: Engine, requests: Sequence[Request], deadline: Deadline | None = None
) -> Generator[Run, None, None]:
    """Submits requests, a few more at a time than can run, and yields the first run of each when the request
    has ended. Leaving the iteration early cancels the other requests; so does the deadline, which raises."""
    engine.check_may_wait()
    ended: SimpleQueue[Request] = SimpleQueue()
    for request in requests:
        request.listener = _listener(request, ended)
    window = 2 * engine.most_running
    submitted = 0
    try:
        for done in range(len(requests)):
            while submitted < min(done + window, len(requests)):
                engine.submit(requests[submitted], may_refuse=False)
                submitted += 1
            yield _next(ended, deadline).runs[0]
    finally:
        running = [request for request in requests[:submitted] if not request.ended]
        for request in running:
            engine.cancel(request, wait=request is running[-1])  # in order, so this waits for all of them


def _next(ended: SimpleQueue[Request], deadline: Deadline | None) -> Request:
    """Waits for the next request that ends; raises when the deadline comes first."""
    while deadline is not None:
        deadline.check()
        try:
            return ended.get(timeout=_LOOK_UP)
        except Empty:
            continue
    return ended.get()


def complete(engine: Engine, requests: Sequence[Request], progress: bool | None) -> None:
    """Submits requests and returns when all have ended.

    `progress` says whether to show a bar; None: if there are many and a terminal shows it.
    """
    try:
        with _bar(len(requests), progress) as advance, closing(as_completed(engine, requests)) as runs:
            for _ in runs:
                advance()
    except KeyboardInterrupt:
        # Those that were submitted have ended, by the cancellation at the latest.
        raise Interrupted([run for each in requests if each.ended for run in each.runs]) from None


def _listener(request: Request, ended: SimpleQueue[Request]) -> Listener:
    open_runs = len(request.runs)

    def tell(run: Run, token: Token | None) -> None:
        nonlocal open_runs
        if token is None:
            open_runs -= 1
            if not open_runs:
                request.listener = ignore  # else the two would keep each other until the garbage is collected
                ended.put(request)

    return tell


@contextmanager
def _bar(total: int, progress: bool | None) -> Iterator[Callable[[], object]]:
    """Shows a progress bar, if wanted, and gives a function that advances it by one."""
    if progress is None:
        progress = total >= _SHOW_FROM and sys.stderr.isatty()
    if not progress:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task("generating", total=total)
        yield lambda: shown.advance(task)
