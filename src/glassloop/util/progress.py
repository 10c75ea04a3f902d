"""Progress on stderr, of training runs and evaluations: a bar on a terminal, a line now and then elsewhere.
While something takes long, a thread says what it is and for how long it has been going on. It needs nothing
but the standard library."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from typing import Self

from glassloop.util.plain_text import visible

_SECONDS = 10.0  # between lines that are not on a terminal
_SILENT = 1.0  # seconds without output after which a terminal shows what is being done
_FIRST = 2.0  # the same elsewhere, for the first time in an activity


class ProgressBar:
    """The progress of `total` steps, of which `done` were made before. Inside `with`, no activity is
    silent."""

    def __init__(self, total: int, done: int, quiet: bool = False) -> None:
        self._total = total
        self.quiet = quiet
        self._bar = sys.stderr.isatty()
        self.begin(done)
        self._shown = 0.0
        self._open = False  # whether the cursor is behind a bar, or a line of what is being done
        self._passing = False  # whether it is the latter
        self._drawn: tuple[int, str] | None = None  # the last bar: steps that were done, and what was said
        self._lock = threading.RLock()
        self._doing, self._soon = "", False  # what is being done, and whether a log file says so at once
        self._since = self._written = time.monotonic()
        self._ended = threading.Event()
        self._ticker: threading.Thread | None = None

    def __enter__(self) -> Self:
        if not self.quiet and self._ticker is None:
            self._ended.clear()
            self._ticker = threading.Thread(target=self._tick, daemon=True)
            self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the line of a bar that did not get to its end, so that an error has a line of its own. A line
        of what was being done goes away."""
        self._ended.set()
        if self._ticker is not None:
            self._ticker.join()
            self._ticker = None
        if self._open:
            self._write("\r\x1b[K" if self._passing else "\n")
            self._open = False

    def begin(self, done: int) -> None:
        """Counts the time that is left from now on, with `done` steps made before."""
        self._began, self._first = time.monotonic(), done

    def now(self, doing: str, soon: bool = True) -> None:
        """Names what is being done from now on. It is shown if it takes long: on a terminal after a second,
        elsewhere after two (`soon`) or ten."""
        with self._lock:
            self._doing, self._soon, self._since = doing, soon, time.monotonic()

    def show(self, done: int, facts: str) -> None:
        """Shows how much is done and what there is to say about it, if the last time was a while ago."""
        now = time.monotonic()
        last = done == self._total
        if self.quiet or (now - self._shown < (0.2 if self._bar else _SECONDS) and not last):
            return
        self._shown = now
        left = (now - self._began) / max(1, done - self._first) * (self._total - done)
        facts += f"  {duration(left)} left"
        with self._lock:
            if not self._bar:
                self._write(facts + "\n")
                return
            self._draw(done, facts)
            self._drawn = None if last else (done, facts)
            if last:
                self._write("\n")
            self._open, self._passing = not last, False

    def _draw(self, done: int, facts: str) -> None:
        """Draws the bar with what there is to say, on the line of the one before."""
        room = shutil.get_terminal_size().columns - len(facts) - 4
        filled = round(done / self._total * room) if room > 4 else 0
        bar = f"[{'█' * filled}{' ' * (room - filled)}] " if room > 4 else ""
        self._write(f"\r{bar}{facts}\x1b[K")

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        if not self.quiet:
            with self._lock:
                self._write(("\r\x1b[K" if self._bar else "") + visible(line) + "\n")
                self._open = False

    def _tick(self) -> None:
        """Shows what is being done whenever nothing was written for a while, until the run ends."""
        while not self._ended.wait(_SILENT / 2):
            with self._lock:
                now = time.monotonic()
                pause = _SILENT if self._bar else _FIRST if self._soon else _SECONDS
                if not self._doing or now - max(self._written, self._since) < pause:
                    continue
                seconds = duration(now - self._since)
                line = visible(f"{self._doing}, {seconds} so far")
                if self._bar and self._drawn is not None:
                    done, facts = self._drawn
                    self._draw(done, f"{facts}  … {seconds}")  # since then; the line must not be wrapped
                else:
                    self._write(f"\r{line}\x1b[K" if self._bar else f"{line}\n")
                self._open, self._passing, self._soon = self._bar, self._drawn is None, False

    def _write(self, text: str) -> None:
        self._written = time.monotonic()
        sys.stderr.write(text)
        sys.stderr.flush()


def duration(seconds: float) -> str:
    """Returns a duration as "2:05" or "1:02:05"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
