"""The server's log: one JSON object per line, on stderr. Prompts and answers are not in it unless asked for.

A thread writes it, so a pipe that is not read delays the log and nothing else; lines that find the queue full
are dropped and counted.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections import deque
from typing import Any, TextIO

from glassloop.record.run import Run
from glassloop.server.operation.settings import LEVELS

_MOST_WAITING = 10_000  # lines


# How important events are; those that are not here are "info", or a library's own level.
_IMPORTANCE = {"store": "warning", "held_up": "warning", "critical": "error"}


class Log:
    """A log of events. Those below `level` are left out, and without `access` all lines of requests."""

    def __init__(
        self,
        prompts: bool = False,
        stream: TextIO | None = None,
        level: str = "info",
        access: bool = True,
    ) -> None:
        self._prompts = prompts
        self._least = LEVELS.index(level)
        self._access = access
        self._stream = stream or sys.stderr
        self._lines: deque[str] = deque()
        self._dropped = 0
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._write, name="glassloop log", daemon=True)
        self._thread.start()

    def __call__(self, event: str, *, level: str | None = None, **details: Any) -> None:
        level = level or _IMPORTANCE.get(event, event if event in LEVELS else "info")
        if LEVELS.index(level) < self._least:
            return
        line = _line(event, details)
        with self._changed:
            if len(self._lines) >= _MOST_WAITING:
                self._dropped += 1
                return
            self._lines.append(line)
            self._changed.notify()

    def request(self, status: int, is_probe: bool, **details: Any) -> None:
        """Logs a request that was answered. Probes that found all well are many, and only for "debug"."""
        if self._access:
            self("request", level="debug" if is_probe and status < 400 else "info", status=status, **details)

    def run(self, run: Run) -> None:
        """Logs that a run has ended."""
        texts = {"prompt": run.prompt, "text": run.text} if self._prompts else {}
        self(
            "run",
            run=run.id,
            finish_reason=run.finish_reason,
            prompt_tokens=run.usage.prompt_tokens,
            completion_tokens=run.usage.completion_tokens,
            cached_tokens=run.usage.cached_tokens,
            queue=round(run.timings.queue, 4),
            prefill=round(run.timings.prefill, 4),
            decode=round(run.timings.decode, 4),
            **({"error": str(run.error)} if run.error is not None else {}),
            **texts,
        )

    def held_up(self, seconds: float, place: str) -> None:
        """Logs that the event loop computes for long, and where."""
        self("held_up", seconds=round(seconds, 3), at=place)

    def take_over(self, name: str) -> None:
        """Makes this log write what a library logs under a name."""
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [_Handler(self)], False

    def close(self, patience: float = 2.0) -> None:
        """Writes what is left, if the reader takes it in time."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(patience)

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._closing)
                lines, self._lines = self._lines, deque()
                dropped, self._dropped = self._dropped, 0
                ends = self._closing
            if dropped:
                lines.append(_line("log", {"dropped": dropped}))
            try:
                self._stream.write("".join(lines))
                self._stream.flush()
            except (OSError, ValueError):  # the reader is gone, or the stream closed: the server goes on
                pass
            if ends and not self._lines:
                return


class _Handler(logging.Handler):
    def __init__(self, log: Log) -> None:
        super().__init__(logging.INFO)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        details: dict[str, Any] = {"message": record.getMessage().strip()}
        if record.exc_info is not None and record.exc_info[1] is not None:
            error = record.exc_info[1]
            details["error"] = f"{type(error).__name__}: {error}"
        self._log(record.levelname.lower(), **details)


def _line(event: str, details: dict[str, Any]) -> str:
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
    return json.dumps({"time": stamp, "event": event, **details}, ensure_ascii=True, default=str) + "\n"
