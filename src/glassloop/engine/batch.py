"""Requests to their end, many at once, for a caller that waits."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from typing import Any

from glassloop.engine.request import Request
from glassloop.engine.thread import EngineThread
from glassloop.trace.run import Run
from glassloop.trace.token import Token

_SHOW_FROM = 8  # prompts, from which a bar is worth its line


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while waiting. What was generated until then is in `runs`."""

    def __init__(self, runs: list[Run]) -> None:
        super().__init__(f"interrupted after {sum(len(run.tokens) for run in runs)} tokens")
        self.runs = runs


def run_batch(engine: EngineThread, requests: Sequence[Request], progress: bool | None) -> None:
    """All requests, a few more than can run at a time let in at once. `progress` None: where one looks on."""
    ended: SimpleQueue[Request] = SimpleQueue()
    for request in requests:
        request.listener = _teller(request, ended)
    window = 2 * engine.loop.scheduler.most_running
    let_in = 0
    try:
        with _bar(len(requests), progress) as bar:
            for done in range(len(requests)):
                while let_in < min(done + window, len(requests)):
                    engine.submit(requests[let_in], may_refuse=False)
                    let_in += 1
                ended.get()
                bar()
    except KeyboardInterrupt:
        for request in requests[:let_in]:
            engine.cancel(request)
        runs = [run for request in requests[:let_in] for run in request.runs]
        engine.call(lambda: None)  # all of them have ended when this is through
        raise Interrupted(runs) from None


def _teller(request: Request, ended: SimpleQueue[Request]) -> Any:
    def tell(run: Run, token: Token | None) -> None:
        if token is None and request.ended:
            ended.put(request)

    return tell


def _bar(total: int, progress: bool | None) -> AbstractContextManager[Any]:
    if progress is None:
        progress = total >= _SHOW_FROM and sys.stderr.isatty()
    if not progress:
        return nullcontext(lambda: None)
    return _Bar(total)


class _Bar:
    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        console = Console(stderr=True)
        self._progress = Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console)
        self._task = self._progress.add_task("generating", total=total)

    def __enter__(self) -> Any:
        self._progress.start()
        return lambda: self._progress.advance(self._task)

    def __exit__(self, *unused: object) -> None:
        self._progress.stop()
