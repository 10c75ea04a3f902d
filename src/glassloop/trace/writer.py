"""A thread that writes runs, so that nobody who makes them has to wait for a disk."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Sequence

from glassloop.trace.run import Run

_LINGER = 0.05  # seconds in which more may come, to be written with the first


class Writer:
    """Runs are written in the order in which they came, all that wait at once. The thread comes with the
    first run and goes when there is none left, so nothing has to be closed."""

    def __init__(self, write: Callable[[Sequence[Run]], None]) -> None:
        self._write = write
        self._changed = threading.Condition()
        self._waiting: list[Run] = []
        self._thread: threading.Thread | None = None
        self._failed: Exception | None = None
        atexit.register(_flush_at_exit, weakref.ref(self))

    def put(self, run: Run) -> None:
        with self._changed:
            self._waiting.append(run)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="glassloop store", daemon=True)
                self._thread.start()

    def flush(self) -> None:
        """Wait until everything is written; what went wrong since the last time is raised."""
        with self._changed:
            # (After a fork of the process the thread is another process's.)
            self._changed.wait_for(lambda: self._thread is None or not self._thread.is_alive())
            failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _work(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(_LINGER)
            with self._changed:
                runs, self._waiting = self._waiting, []
                if not runs:
                    self._thread = None
                    self._changed.notify_all()
                    return
            try:
                self._write(runs)
            except Exception as error:  # a full disk must not end the engine; `flush` tells
                self._failed = error


def _flush_at_exit(reference: weakref.ref[Writer]) -> None:
    writer = reference()
    if writer is not None:
        writer.flush()
