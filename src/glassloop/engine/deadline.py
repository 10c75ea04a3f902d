"""A deadline: how long a computation may take, and whether its caller still wants it.

The caller's thread, the thread that serves its client and the engine's thread share one; all of it may be
called from any of them.
"""

from __future__ import annotations

from math import inf
from threading import Event
from time import monotonic

from glassloop.errors import GlassloopError
from glassloop.util.shown import shown


class TimedOut(GlassloopError):
    """A computation took longer than it was allowed to."""


class Cancelled(GlassloopError):
    """A computation whose caller no longer wants it."""


def check_deadline(deadline: object) -> None:
    """Raises unless this is a deadline, or None for no limit."""
    if deadline is not None and not isinstance(deadline, Deadline):
        raise GlassloopError.about("deadline", f"is {shown(deadline)}; a Deadline is expected")


class Deadline:
    """The latest end of a computation: `seconds` from now, or no limit. `what` names the computation in the
    error message."""

    def __init__(self, seconds: float | None = None, what: str = "the computation") -> None:
        self.seconds = seconds
        self.what = what
        self._until = None if seconds is None else monotonic() + seconds
        self._cancelled = Event()

    def cancel(self) -> None:
        """Ends the computation: its result is not wanted any more."""
        self._cancelled.set()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    @property
    def expired(self) -> bool:
        return self._until is not None and monotonic() >= self._until

    @property
    def left(self) -> float:
        """The seconds that are left: none if it is cancelled, infinitely many if there is no limit."""
        if self.cancelled:
            return 0.0
        return inf if self._until is None else max(0.0, self._until - monotonic())

    def error(self) -> GlassloopError:
        """The error for a computation that this deadline ends."""
        if self.cancelled or self.seconds is None:
            return Cancelled(f"{self.what} was cancelled")
        return TimedOut(f"{self.what} took longer than {self.seconds:g} s")

    def check(self) -> None:
        """Raises `TimedOut` if the time is up, `Cancelled` if the result is not wanted any more."""
        if self.cancelled or self.expired:
            raise self.error()
