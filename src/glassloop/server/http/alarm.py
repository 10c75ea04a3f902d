"""A time limit on an event loop, for connections (`connection.py`) and the end of the server (`serve.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_LATE = 0.25  # seconds
_AGAIN = 3  # times


class Alarm:
    """Calls a function after some seconds. If the event loop is late to do so, they begin again, a few times
    at most: the server or the whole machine stood still, so what clients sent was not read, and nothing was
    computed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, ring: Callable[[], None]) -> None:
        self._loop, self._seconds, self._ring = loop, seconds, ring
        self._again = _AGAIN
        self._set()

    def cancel(self) -> None:
        self._handle.cancel()

    def _set(self) -> None:
        self._due = self._loop.time() + self._seconds
        self._handle = self._loop.call_later(self._seconds, self._over)

    def _over(self) -> None:
        if self._again and self._loop.time() - self._due > _LATE:
            self._again -= 1
            self._set()
        else:
            self._ring()
