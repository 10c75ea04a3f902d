"""Many requests at once, for a caller that waits until all of them have ended."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue

from glassloop.engine.request import Listener, Request
from glassloop.engine.thread import EngineThread
from glassloop.trace.run import Run
from glassloop.trace.token import Token

_SHOW_FROM = 8  # prompts, from which on a bar is worth its line


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while waiting. What was generated until then is in `runs`."""

    def __init__(self, runs: list[Run]) -> None:
        super().__init__(f"interrupted after {sum(len(run.tokens) for run in runs)} tokens")
        self.runs = runs


def complete(engine: EngineThread, requests: Sequence[Request], progress: bool | None) -> None:
    """Submits requests, a few more at a time than can run, and returns when all have ended.

    `progress` says whether to show a bar; None: if there are many and a terminal shows it.
    """
    ended: SimpleQueue[Request] = SimpleQueue()
    for request in requests:
        request.listener = _listener(request, ended)
    window = 2 * engine.loop.scheduler.most_running
    submitted = 0
    try:
        with _bar(len(requests), progress) as bar:
            for done in range(len(requests)):
                while submitted < min(done + window, len(requests)):
                    engine.submit(requests[submitted], may_refuse=False)
                    submitted += 1
                ended.get()
                bar()
    except KeyboardInterrupt:
        for request in requests[:submitted]:
            engine.cancel(request)
        runs = [run for request in requests[:submitted] for run in request.runs]
        engine.call(lambda: None)  # the cancellations come before it
        raise Interrupted(runs) from None


def _listener(request: Request, ended: SimpleQueue[Request]) -> Listener:
    def tell(run: Run, token: Token | None) -> None:
        if token is None and request.ended:
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
