"""Reports what holds up the event loop: all clients wait for a callback that computes for long.

The loop notes the processor time of its thread again and again, and another thread looks whether it still
does. Time in which the loop's thread waits is not counted, for the interpreter's lock or for a busy machine.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from starlette.types import ASGIApp, Receive, Scope, Send

LONGEST = 0.25  # seconds of processor time after which the loop counts as held up
_GARBAGE = "the collection of garbage"
_PACKAGE = Path(__file__).parents[2]


class Watchdog:
    """Watches the running event loop from a thread of its own until `close`. Calls `report(seconds, place)`
    when the loop is found held up, and once more with the whole time when it goes on. Systems on which a
    thread cannot read another one's clock have no watchdog."""

    def __init__(self, report: Callable[[float, str], None], longest: float = LONGEST) -> None:
        self._report = report
        self._longest = longest
        self._every = longest / 2.5  # seconds between two looks
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._noted = time.thread_time()  # the processor time of the loop's thread when it was last here
        self._place = ""  # where it was found held up since then
        self._collected = 0.0  # processor time that the collection of garbage took on it since then
        self._collecting: float | None = None  # the processor time when one began that goes on
        self._over = threading.Event()
        if hasattr(time, "pthread_getcpuclockid"):
            self._clock = time.pthread_getcpuclockid(self._thread_id)
            gc.callbacks.append(self._note_garbage)
            self._note()
            threading.Thread(target=self._watch, name="glassloop watchdog", daemon=True).start()

    def close(self) -> None:
        self._over.set()
        with suppress(ValueError):
            gc.callbacks.remove(self._note_garbage)

    def _note_garbage(self, phase: str, about: dict[str, int]) -> None:
        """Notes a collection, which may begin wherever an object is made. Python calls it on any thread."""
        if threading.get_ident() != self._thread_id:
            return
        if phase == "start":
            self._collecting = time.thread_time()
        elif self._collecting is not None:
            self._collected += time.thread_time() - self._collecting
            self._collecting = None

    def _note(self) -> None:
        """Notes that the loop goes on, on its thread."""
        seconds = time.thread_time() - self._noted
        if seconds > self._longest:
            self._report(seconds, self._place or self._place_of(None, seconds))
        self._noted, self._place, self._collected = time.thread_time(), "", 0.0
        if not self._over.is_set():
            self._loop.call_later(self._every, self._note)

    def _watch(self) -> None:
        while not self._over.wait(self._every):
            try:
                seconds = time.clock_gettime(self._clock) - self._noted
            except OSError:  # the loop's thread has ended
                return
            if seconds > self._longest and not self._place:
                self._place = self._place_of(sys._current_frames().get(self._thread_id), seconds)
                self._report(seconds, self._place)

    def _place_of(self, frame: FrameType | None, seconds: float) -> str:
        begun, collected = self._collecting, self._collected
        if begun is not None:
            collected += self._noted + seconds - begun
        if collected > seconds / 2:
            return _GARBAGE
        return "a call that lets no other thread run" if frame is None else _place_of(frame)


class Watched:
    """An application whose event loop is watched from its first request on. Ray Serve has a loop of its own
    for it, which is not there yet when the application is made."""

    def __init__(self, app: ASGIApp, report: Callable[[float, str], None]) -> None:
        self._app = app
        self._report = report
        self._watchdog: Watchdog | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._watchdog is None:
            self._watchdog = Watchdog(self._report)
        await self._app(scope, receive, send)


def _place_of(frame: FrameType) -> str:
    """Returns the function of this package that runs in a frame, and the one that it has called."""
    inner, outer = frame.f_code.co_qualname, frame.f_back
    while True:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_PACKAGE):
            place = f"{path.relative_to(_PACKAGE)}:{frame.f_lineno} {frame.f_code.co_qualname}"
            return place if frame.f_code.co_qualname == inner else f"{place} → {inner}"
        if outer is None:
            return inner
        frame, outer = outer, outer.f_back
