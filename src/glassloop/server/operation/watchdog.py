"""Tells what holds up the event loop: all clients wait for a callback that computes for long.

The loop notes the processor time of its thread ten times a second, and another thread looks whether it still
does. Time in which the loop's thread waits is not counted, for the interpreter's lock or for a busy machine.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

LONGEST = 0.25  # seconds of processor time after which the loop counts as held up
_EVERY = 0.1  # seconds between two looks
_PACKAGE = Path(__file__).parents[2]


class Watchdog:
    """Watches the running event loop from a thread of its own until `close`. `tell(seconds, place)` is called
    when the loop is found held up, and once more with the whole time when it goes on. Systems on which a
    thread cannot read another one's clock have no watchdog."""

    def __init__(self, tell: Callable[[float, str], None]) -> None:
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._noted = time.thread_time()  # the processor time of the loop's thread when it was last here
        self._place = ""  # where it was found held up since then
        self._over = threading.Event()
        if hasattr(time, "pthread_getcpuclockid"):
            self._clock = time.pthread_getcpuclockid(self._thread_id)
            self._note()
            threading.Thread(target=self._watch, name="glassloop watchdog", daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def _note(self) -> None:
        """Notes that the loop goes on, on its thread."""
        seconds = time.thread_time() - self._noted
        if seconds > LONGEST:
            self._tell(seconds, self._place or "a call that lets no other thread run")
        self._noted, self._place = time.thread_time(), ""
        if not self._over.is_set():
            self._loop.call_later(_EVERY, self._note)

    def _watch(self) -> None:
        while not self._over.wait(_EVERY):
            try:
                seconds = time.clock_gettime(self._clock) - self._noted
            except OSError:  # the loop's thread has ended
                return
            if seconds > LONGEST and not self._place:
                self._place = _place_of(sys._current_frames().get(self._thread_id))
                self._tell(seconds, self._place)


def _place_of(frame: FrameType | None) -> str:
    """Returns the function of this package that runs in a frame, and the one that it has called."""
    inner = "" if frame is None else frame.f_code.co_qualname
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_PACKAGE):
            own = f"{path.relative_to(_PACKAGE)}:{frame.f_lineno} {frame.f_code.co_qualname}"
            return own if frame.f_code.co_qualname == inner else f"{own} → {inner}"
        frame = frame.f_back
    return inner or "unknown"
