"""The progress of an evaluation on stderr: a bar where rich is installed and a terminal shows it, else a line
every ten seconds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

_SECONDS = 10.0


class EvaluationProgress:
    """How many of `total` items are finished, and how fast tokens come. The base class shows nothing."""

    def __init__(self, total: int, done: int) -> None:
        self._total, self._done, self._tokens, self._what = total, done, 0, ""
        self._start = perf_counter()

    def begin(self, what: str) -> None:
        """Notes what is computed from now on, such as the name of a method."""
        self._what = what
        self._show()

    def finish_item(self, tokens: int) -> None:
        """Notes that one more item is finished, which took so many tokens."""
        self._done, self._tokens = self._done + 1, self._tokens + tokens
        self._show()

    @property
    def _seconds(self) -> float:
        return perf_counter() - self._start

    @property
    def _speed(self) -> str:
        return f"{self._tokens / max(self._seconds, 1e-9):.0f} tokens/s" if self._tokens else ""

    def _show(self) -> None:
        pass


@contextmanager
def progress(total: int, done: int) -> Iterator[EvaluationProgress]:
    """Shows how many of `total` items are finished; `done` were before."""
    if sys.stderr.isatty():
        try:
            import rich.progress  # noqa: F401
        except ImportError:
            pass
        else:
            with _shown_bar() as bar:
                yield _Bar(total, done, bar)
            return
    lines = _Lines(total, done)
    yield lines
    lines.say()


@contextmanager
def _shown_bar() -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        yield bar


class _Bar(EvaluationProgress):
    """A bar of rich, which is drawn again several times a second."""

    def __init__(self, total: int, done: int, bar: Any) -> None:
        super().__init__(total, done)
        self._bar = bar
        self._task = bar.add_task("", total=total, completed=done, speed="")

    def _show(self) -> None:
        self._bar.update(self._task, description=self._what, completed=self._done, speed=self._speed)


class _Lines(EvaluationProgress):
    """One line every few seconds: items, tokens, speed."""

    def __init__(self, total: int, done: int) -> None:
        super().__init__(total, done)
        self._last = perf_counter()

    def _show(self) -> None:
        if perf_counter() - self._last > _SECONDS:
            self._last = perf_counter()
            self.say()

    def say(self) -> None:
        told = f"{self._done}/{self._total} {self._what}, {self._tokens} tokens in {self._seconds:.0f} s"
        print(f"{told} ({self._speed})" if self._speed else told, file=sys.stderr, flush=True)
