"""Lists of prompts: the options of each prompt, and waiting for all requests, or for each as it ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from queue import Empty, SimpleQueue

from glassloop.decode.luck import list_seed
from glassloop.decode.sampling import Sampling
from glassloop.engine.deadline import Deadline
from glassloop.engine.request import Listener, Request, draw_seed, ignore
from glassloop.engine.thread import EngineThread
from glassloop.errors import SamplingError
from glassloop.record.run import Run
from glassloop.record.token import Token

_SHOW_FROM = 8  # prompts, from which on a bar is worth its line
_LOOK_UP = 0.1  # seconds between two looks at the deadline


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while waiting. What was generated until then is in `runs`."""

    def __init__(self, runs: list[Run]) -> None:
        super().__init__(f"interrupted after {sum(len(run.tokens) for run in runs)} tokens")
        self.runs = runs


def sampling_of_each(sampling: Sampling | Sequence[Sampling], count: int, same_luck: bool) -> list[Sampling]:
    """Returns the options of each of `count` prompts. A list of options is used as it is. If one is given for
    all, each prompt gets a seed derived from its seed, if it has one; with `same_luck` all get one seed."""
    if isinstance(sampling, Sequence):
        if same_luck:
            raise SamplingError.about(
                "same_luck", "applies to a single Sampling; in a list, each has its own seed"
            )
        if len(sampling) != count:
            problem = f"has {len(sampling)} entries; {count} are expected, one for each prompt"
            raise SamplingError.about("sampling", problem)
        return list(sampling)
    if same_luck:
        return [replace(sampling, seed=draw_seed() if sampling.seed is None else sampling.seed)] * count
    if sampling.seed is None:  # each request draws its own
        return [sampling] * count
    return [replace(sampling, seed=list_seed(sampling.seed, number)) for number in range(count)]


def as_completed(
    engine: EngineThread, requests: Sequence[Request], deadline: Deadline | None = None
) -> Generator[Run, None, None]:
    """Submits requests, a few more at a time than can run, and yields the first run of each when the request
    has ended. Leaving the iteration early cancels the other requests; so does the deadline, which raises."""
    engine.check_may_wait()
    ended: SimpleQueue[Request] = SimpleQueue()
    for request in requests:
        request.listener = _listener(request, ended)
    window = 2 * engine.loop.scheduler.most_running
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


def complete(engine: EngineThread, requests: Sequence[Request], progress: bool | None) -> None:
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
