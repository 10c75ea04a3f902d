"""Renders chat templates in worker processes, so that a hostile template costs a bounded time and memory.

A template comes with a model file and is a program. `template_worker.py` runs it under limits of the
operating system; this side waits for the answer as long as `TemplateLimits` says, and then ends the worker. A
worker serves one template and stays for the next rendering, so templates cannot affect each other.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from threading import Condition
from typing import Any

from glassloop.errors import TextError
from glassloop.text.chat import TemplateLimits
from glassloop.text.template_worker import ENDED, TEXT
from glassloop.util.child import Child, Patience

_SCRIPT = Path(__file__).with_name("template_worker.py")
_KEPT_VARIABLES = ("TZ", "LD_LIBRARY_PATH")  # for `strftime_now`, and for Python itself to start
_NOT_STARTED = "the process that renders it cannot be started"
_SECONDS_TO_START = 60.0  # on a busy machine; the template does not run yet
_MOST_WORKERS = 4
_MOST_OF_ONE = 2  # renderings of one template at a time, so that a slow one leaves workers to others


def render(source: str, values: Mapping[str, Any], limits: TemplateLimits) -> str:
    """Returns the text that a template makes of JSON-like values. Raises TextError with the reason alone."""
    return _pool.render(source, limits, _to_json(values, limits))


def warm(source: str, limits: TemplateLimits) -> None:
    """Starts the worker of a template, so that its first rendering is as quick as the others."""
    _pool.render(source, limits, None)


def _to_json(values: Mapping[str, Any], limits: TemplateLimits) -> bytes:
    parts = []
    for name, value in values.items():
        try:
            parts.append(f"{json.dumps(name)}:{json.dumps(value, ensure_ascii=False, default=_plain)}")
        except RecursionError:
            raise TextError(f"{name} is nested too deeply") from None
        except (TypeError, ValueError) as error:
            raise TextError(f"{name} cannot be written as JSON: {str(error)[:200]}") from None
    data = f"{{{','.join(parts)}}}".encode("utf-8", "surrogatepass")
    if len(data) > limits.memory:
        raise TextError(f"is given {len(data)} bytes to write; at most {limits.memory} are expected")
    return data


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return list(value)
    raise TypeError(f"it holds a {type(value).__name__}")


class _Worker:
    """A process that has compiled one template."""

    def __init__(self, source: str, limits: TemplateLimits) -> None:
        self.serves = (source, limits)
        self.ready = False  # to render
        self._seconds, self._most = limits.seconds, 4 * limits.text + 4096  # bytes of an answer
        env = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        try:
            self.child = Child([sys.executable, "-I", "-S", str(_SCRIPT)], env)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise TextError(f"{_NOT_STARTED}: {reason}") from None
        setup = asdict(limits) | {"source": source, "path": [str(Path(path).absolute()) for path in sys.path]}
        try:
            if self._receive(Patience(_SECONDS_TO_START), json.dumps(setup).encode()) is None:
                raise TextError(_NOT_STARTED)
            self._answer()  # to the compilation
        except BaseException:
            self.child.end()
            raise

    def render(self, values: bytes) -> str:
        self.ready = False
        return self._answer(values)

    def _answer(self, data: bytes | None = None) -> str:
        answer = self._receive(Patience(self._seconds), data)
        if answer is None:
            raise TextError(self._cause_of_death())
        status, text = answer[0], answer[1:].decode("utf-8", "surrogatepass")
        self.ready = status != ENDED
        if status != TEXT:
            raise TextError(text)
        return text

    def _receive(self, patience: Patience, data: bytes | None) -> bytes | None:
        """Returns the next message of the worker, after sending it some data; None if it has ended."""
        try:
            if data is not None:
                self.child.send(data, patience)
            return self.child.receive(patience, self._most)
        except TimeoutError:
            raise TextError(self._too_slow()) from None
        except ValueError:
            raise TextError("makes too long a text") from None

    def _cause_of_death(self) -> str:
        code = self.child.wait()
        if code == -signal.SIGXCPU:
            return self._too_slow()
        return "is nested too deeply" if code == -signal.SIGSEGV else "needs too much memory"

    def _too_slow(self) -> str:
        return f"takes more than {self._seconds:g} seconds"


class _Pool:
    """The workers of all templates. Threads share it."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._workers: set[_Worker] = set()
        self._idle: list[_Worker] = []  # idle longest first
        self._busy: Counter[tuple[str, TemplateLimits]] = Counter()  # renderings of each template

    def render(self, source: str, limits: TemplateLimits, values: bytes | None) -> str:
        """Renders on an idle worker of this template or a new one. Without values, only starts the worker."""
        if len(source) > limits.source:
            raise TextError(f"has {len(source)} characters; at most {limits.source} are expected")
        worker = self._take(source, limits)
        try:
            if worker is None:
                worker = _Worker(source, limits)
                self._workers.add(worker)
            return "" if values is None else worker.render(values)
        finally:
            self._give_back(source, limits, worker)

    def _take(self, source: str, limits: TemplateLimits) -> _Worker | None:
        """Returns an idle worker of this template, or None if the caller is to start one."""
        serves, surplus = (source, limits), None
        with self._changed:
            self._changed.wait_for(
                lambda: self._busy[serves] < _MOST_OF_ONE and self._busy.total() < _MOST_WORKERS
            )
            self._busy[serves] += 1
            worker = next((each for each in reversed(self._idle) if each.serves == serves), None)
            if worker is not None:
                self._idle.remove(worker)
            elif self._idle and len(self._idle) + self._busy.total() > _MOST_WORKERS:
                surplus = self._idle.pop(0)
        if surplus is not None:
            self._end(surplus)
        if worker is not None and not worker.child.alive():  # it was killed
            self._end(worker)
            return None
        return worker

    def _give_back(self, source: str, limits: TemplateLimits, worker: _Worker | None) -> None:
        if worker is not None and not worker.ready:
            self._end(worker)
        with self._changed:
            self._busy[source, limits] -= 1
            if not self._busy[source, limits]:
                del self._busy[source, limits]
            if worker is not None and worker.ready:
                self._idle.append(worker)
            self._changed.notify_all()

    def _end(self, worker: _Worker) -> None:
        self._workers.discard(worker)
        worker.child.end()

    def close(self) -> None:
        self._idle.clear()
        for worker in list(self._workers):
            self._end(worker)

    def forget(self) -> None:
        """Starts afresh in a fork of this process: the workers are the parent's, and the lock may be held."""
        self.__init__()  # type: ignore[misc]


_pool = _Pool()
atexit.register(_pool.close)
os.register_at_fork(after_in_child=_pool.forget)
