"""Garbage collection while engines are busy.

A full collection looks at every object of the process. torch and Triton alone have some hundred thousand,
which takes longer than many steps of a device, and the records of new tokens set off one after another. So
the objects that exist when an engine gets busy are left out (`gc.freeze`) until no engine is. Those that come
later are looked at twice, as usual, and those that are left then are left out too: tokens live as long as
their run, and looking at all of them every hundred steps took longer than several steps. Once a minute, or
after some million objects, all of them are looked at.
"""

from __future__ import annotations

import gc
from threading import Lock
from time import monotonic

_OFTEN = 60.0  # seconds after which all objects are collected, however busy the engines are
# Collections of the second generation after which they are, too. One follows some 7,000 new objects, so what
# is garbage and was left out stays below a few hundred megabytes.
_MOST = 200
# Python 3.12 itself leaves out some hundred objects that never die; a program that has called `gc.freeze` has
# more than this many left out.
_FEW = 10_000


class Garbage:
    """The collection of garbage, as one engine sees it."""

    _lock = Lock()
    _busy = 0  # engines
    _frozen_at = 0.0
    _ours = False  # whether it was an engine that froze the objects
    _left_out = 0  # how often survivors were frozen since all objects were collected

    def __init__(self) -> None:
        self._is_busy = False

    def busy(self) -> None:
        """Notes that the engine is busy; called before every step."""
        kind = Garbage
        if self._is_busy and (
            not kind._ours or (monotonic() - kind._frozen_at < _OFTEN and kind._left_out < _MOST)
        ):
            return
        with kind._lock:
            if not self._is_busy:
                self._is_busy = True
                kind._busy += 1
                if kind._busy == 1:
                    # Else the program itself froze objects.
                    kind._ours = gc.get_freeze_count() < _FEW
                    if kind._ours:
                        gc.callbacks.append(_freeze_survivors)
            elif kind._ours:
                gc.unfreeze()
                gc.collect()
            if kind._ours:
                gc.freeze()
                kind._frozen_at, kind._left_out = monotonic(), 0

    def idle(self) -> None:
        """Notes that the engine has nothing to do."""
        kind = Garbage
        if not self._is_busy:
            return
        with kind._lock:
            self._is_busy = False
            kind._busy -= 1
            if kind._busy == 0 and kind._ours:
                gc.callbacks.remove(_freeze_survivors)
                gc.unfreeze()
                kind._ours = False


def _freeze_survivors(phase: str, about: dict[str, int]) -> None:
    """Leaves out what a collection of the second generation, or of all, has left. Python calls it, on any
    thread."""
    if phase == "stop" and about["generation"] > 0:
        gc.freeze()
        Garbage._left_out += 1
