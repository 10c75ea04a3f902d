"""Waiting for what another thread or process does, however slow the machine is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import cache

_TICK = 0.05  # seconds between two looks at the clock
_LATE = 0.5  # seconds after which the next look is late because this process could not run


def awake() -> float:
    """Returns the time of a clock that stands still while this process does. A virtual machine may stop for
    half a minute, and then nothing that a test waits for or measures can happen."""
    return _clock().read()


def wait_until(true: Callable[[], object], seconds: float = 60) -> None:
    """Returns once the condition holds; fails if it does not within this time."""
    until = awake() + seconds
    while not true():
        assert awake() < until, "it did not happen in time"
        time.sleep(0.02)


def quickest(work: Callable[[], object], enough: float) -> float:
    """Returns the processor time of the quickest of five runs, or of the first that takes less than `enough`
    seconds. A virtual machine may count time as the processor's in which it stood still."""
    times = []
    while len(times) < 5 and min(times, default=enough) >= enough:
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


@cache
def _clock() -> _Clock:
    return _Clock()


class _Clock:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = time.monotonic()
        self._still = 0.0  # seconds
        threading.Thread(target=self._look, daemon=True).start()

    def read(self) -> float:
        with self._lock:
            now = time.monotonic()
            if now - self._last > _LATE:
                self._still += now - self._last - _TICK
            self._last = now
            return now - self._still

    def _look(self) -> None:
        while True:
            time.sleep(_TICK)
            self.read()
