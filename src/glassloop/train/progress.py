"""The progress of a run on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import shutil
import sys
import time

from glassloop.plain_text import visible

_SECONDS = 10.0  # between lines that are not on a terminal


class Progress:
    """The bar of one run. `done` of its `steps` were made before."""

    def __init__(self, steps: int, done: int, quiet: bool = False) -> None:
        self._steps = steps
        self._quiet = quiet
        self._bar = sys.stderr.isatty()
        self._began, self._first = time.monotonic(), done
        self._shown = 0.0
        self._open = False  # whether the cursor is behind a bar

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the line of a bar that did not get to its end, so that an error has a line of its own."""
        if self._open:
            self._write("\n")

    def step(self, done: int, loss: float, tokens_per_second: float) -> None:
        """Shows that a step is done."""
        facts = f"step {done}/{self._steps}  loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s"
        self.show(done, facts)

    def show(self, done: int, facts: str) -> None:
        """Shows how much is done and what there is to say about it, if the last time was a while ago."""
        now = time.monotonic()
        last = done == self._steps
        if self._quiet or (now - self._shown < (0.2 if self._bar else _SECONDS) and not last):
            return
        self._shown = now
        left = (now - self._began) / max(1, done - self._first) * (self._steps - done)
        facts += f"  {duration(left)} left"
        if not self._bar:
            self._write(facts + "\n")
            return
        room = shutil.get_terminal_size().columns - len(facts) - 4
        filled = round(done / self._steps * room) if room > 4 else 0
        bar = f"[{'█' * filled}{' ' * (room - filled)}] " if room > 4 else ""
        self._write(f"\r{bar}{facts}\x1b[K" + ("\n" if last else ""))
        self._open = not last

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        if not self._quiet:
            self._write(("\r\x1b[K" if self._bar else "") + visible(line) + "\n")
            self._open = False

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def duration(seconds: float) -> str:
    """Returns a duration as "2:05" or "1:02:05"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
