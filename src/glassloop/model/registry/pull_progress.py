"""The progress of a pull on stderr: a bar on a terminal, otherwise one line before and one after.

pip and huggingface_hub download without reporting progress here, so the bar follows the bytes that appear in
the staging folder.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from glassloop.model.registry.disk import tree_size

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_POLL_SECONDS = 0.1


@contextmanager
def pull_progress(show: bool) -> Iterator[PullProgress]:
    """Shows the progress of a pull while the block runs."""
    on_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    bar = _make_bar() if show and on_terminal else None
    with bar or nullcontext():
        yield PullProgress(show, bar)


class PullProgress:
    """Shows one pull. `say` prints a line that stays; `phase` names what is being done now."""

    def __init__(self, show: bool, bar: Progress | None) -> None:
        self._show = show
        self._bar = bar
        self._task: TaskID | None = None
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def say(self, line: str, *, always: bool = False) -> None:
        if not (self._show or always):
            return
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def phase(self, doing: str, total: int | None = None) -> None:
        """Starts a new bar from zero; without a total it only shows that something is going on."""
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(doing, total=total)

    def reached(self, completed: int) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=completed)

    @contextmanager
    def watching(self, folder: Path, before: int, expected: int) -> Iterator[None]:
        """Keeps the bar at `before` plus the bytes in `folder`, at most `expected`, while the block runs."""
        if self._bar is None:
            yield
            return
        ended = threading.Event()

        def follow() -> None:
            while not ended.wait(_POLL_SECONDS):
                self.reached(before + min(tree_size(folder), expected))

        follower = threading.Thread(target=follow, name="glassloop-pull-progress", daemon=True)
        follower.start()
        try:
            yield
        finally:
            ended.set()
            follower.join()
        self.reached(before + expected)


def _make_bar() -> Progress:
    from rich import progress
    from rich.console import Console
    from rich.theme import Theme

    theme = {"progress.download": "default", "progress.data.speed": "dim", "progress.elapsed": "dim"}
    return progress.Progress(
        progress.SpinnerColumn(style="cyan"),
        progress.TextColumn("{task.description}"),
        progress.BarColumn(30, complete_style="cyan", finished_style="cyan", pulse_style="cyan"),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeElapsedColumn(),
        console=Console(stderr=True, theme=Theme(theme)),
        transient=True,
    )
