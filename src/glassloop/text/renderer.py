"""Renders chat templates in worker processes, so that a hostile template costs a bounded time and memory.

A template comes with a model file and is a program. `template_worker.py` runs it under limits of the
operating system; this side waits for the answer as long as `TemplateLimits` says, and then ends the worker. A
worker serves one template and stays for the next rendering, so templates cannot affect each other.
"""

from __future__ import annotations

import json
import os
import resource  # noqa: F401  (chat.py reports a system that does not have it)
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glassloop.errors import TextError
from glassloop.text.template_worker import ENDED, TEXT, TemplateLimits
from glassloop.util.child import Child, Patience
from glassloop.util.child_pool import ChildPool

_SCRIPT = Path(__file__).with_name("template_worker.py")
_KEPT_VARIABLES = ("TZ", "LD_LIBRARY_PATH")  # for `strftime_now`, and for Python itself to start
_NOT_STARTED = "the process that renders it cannot be started"
_SECONDS_TO_START = 60.0  # on a busy machine; the template does not run yet
_MOST_WORKERS = 4
_MOST_OF_ONE = 2  # renderings of one template at a time, so that a slow one leaves workers to others


def render(source: str, values: Mapping[str, Any], limits: TemplateLimits) -> str:
    """Returns the text that a template makes of JSON-like values. Raises TextError with the reason alone."""
    data = _to_json(values, limits)
    with _pool.lend(_checked(source, limits)) as worker:
        status, text = _answer(worker, limits, data)
        if status == ENDED:
            raise TextError(text)
    if status != TEXT:
        raise TextError(text)
    return text


def warm(source: str, limits: TemplateLimits) -> None:
    """Starts the worker of a template, so that its first rendering is as quick as the others."""
    with _pool.lend(_checked(source, limits)):
        pass


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


# ── workers ────────────────────────────────────────────────────────────────────────────────────────────────


def _checked(source: str, limits: TemplateLimits) -> tuple[str, TemplateLimits]:
    if len(source) > limits.source:
        raise TextError(f"has {len(source)} characters; at most {limits.source} are expected")
    return source, limits


def _start(template: tuple[str, TemplateLimits]) -> Child:
    """Returns a process that has compiled a template."""
    source, limits = template
    env = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    try:
        worker = Child(_SCRIPT, env)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TextError(f"{_NOT_STARTED}: {reason}") from None
    path = [str(Path(each).absolute()) for each in sys.path]
    setup = {**limits._asdict(), "source": source, "path": path}
    try:
        if _receive(worker, limits, Patience(_SECONDS_TO_START), json.dumps(setup).encode()) is None:
            raise TextError(_NOT_STARTED)
        status, text = _answer(worker, limits)  # to the compilation
        if status != TEXT:
            raise TextError(text)
    except BaseException:
        worker.end()
        raise
    return worker


def _answer(worker: Child, limits: TemplateLimits, data: bytes | None = None) -> tuple[int, str]:
    """Returns the status and the text of the worker's next answer, after sending it some data."""
    answer = _receive(worker, limits, Patience(limits.seconds), data)
    if answer is None:
        raise TextError(_cause_of_death(worker.wait(), limits))
    return answer[0], answer[1:].decode("utf-8", "surrogatepass")


def _receive(worker: Child, limits: TemplateLimits, patience: Patience, data: bytes | None) -> bytes | None:
    try:
        if data is not None:
            worker.send(data, patience)
        return worker.receive(patience, 4 * limits.text + 4096)
    except TimeoutError:
        raise TextError(_too_slow(limits)) from None
    except ValueError:
        raise TextError("makes too long a text") from None


def _cause_of_death(code: int, limits: TemplateLimits) -> str:
    if code == -signal.SIGXCPU:
        return _too_slow(limits)
    return "is nested too deeply" if code == -signal.SIGSEGV else "needs too much memory"


def _too_slow(limits: TemplateLimits) -> str:
    return f"takes more than {limits.seconds:g} seconds"


_pool = ChildPool(_start, _MOST_WORKERS, _MOST_OF_ONE)
