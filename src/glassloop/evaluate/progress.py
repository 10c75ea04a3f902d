"""The progress of an evaluation on stderr: a bar where rich is installed and a terminal shows it, else a line
every ten seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

_SECONDS = 10.0

Told = Callable[[str, int], None]  # what is being done, and the tokens of what has just been finished


@contextmanager
def progress(total: int, done: int) -> Iterator[Told]:
    """Shows how many of `total` items are finished; `done` were before."""
    if sys.stderr.isatty():
        try:
            import rich.progress  # noqa: F401
        except ImportError:
            pass
        else:
            with _bar(total, done) as told:
                yield told
            return
    lines = _Lines(total, done)
    yield lines
    lines.say()


@contextmanager
def _bar(total: int, done: int) -> Iterator[Told]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
    )
    began, tokens = perf_counter(), 0
    with Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task("loading", total=total, completed=done, speed="")

        def told(what: str, more: int) -> None:
            nonlocal tokens
            tokens += more
            speed = f"{tokens / max(perf_counter() - began, 1e-9):.0f} tokens/s"
            shown.update(task, description=what, advance=1, speed=speed)

        yield told


class _Lines:
    """One line every few seconds: items, tokens, speed."""

    def __init__(self, total: int, done: int) -> None:
        self._total, self._done, self._tokens, self._what = total, done, 0, ""
        self._start = self._last = perf_counter()

    def __call__(self, what: str, tokens: int) -> None:
        self._what, self._done, self._tokens = what, self._done + 1, self._tokens + tokens
        if perf_counter() - self._last > _SECONDS:
            self._last = perf_counter()
            self.say()

    def say(self) -> None:
        seconds = perf_counter() - self._start
        speed = self._tokens / seconds if seconds else 0.0
        told = f"{self._done}/{self._total} {self._what}, {self._tokens} tokens in {seconds:.0f} s"
        print(f"{told} ({speed:.0f} per second)", file=sys.stderr, flush=True)
