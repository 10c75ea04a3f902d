"""Runs an untrusted program in a child process without rights: no network, no other process, nothing written
to disk, with limits on time, memory and output.

It protects the machine, not the score: a program runs in one process with its tests, and could tamper with
them. Where the kernel cannot enclose a process, running is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from glassloop.engine.deadline import Deadline
from glassloop.errors import GlassloopError
from glassloop.util.child import Child, Patience
from glassloop.util.shown import printable

_SCRIPT = Path(__file__).with_name("sandbox_child.py")
_SECONDS_TO_START = 30.0  # on a busy machine; the program does not run yet
LONGEST_PROGRAM = 1 << 20  # characters
_LEAST_SECONDS = 0.01
_MOST_SHOWN = 2000  # characters of what a program says


@dataclass(frozen=True)
class SandboxLimits:
    """What a program in the sandbox may take."""

    seconds: float = 5.0
    memory: int = 512 << 20  # bytes of address space
    output: int = 10_000  # characters that are kept of what it prints

    def __post_init__(self) -> None:
        for name, least, most in (
            ("seconds", _LEAST_SECONDS, 3600),
            ("memory", 64 << 20, 1 << 40),
            ("output", 0, 1 << 24),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
                raise GlassloopError.about(name, f"is {value!r}; a number from {least} to {most} is expected")


@dataclass(frozen=True)
class SandboxOutcome:
    """What became of a program: the results of its parts, and why it ended early if it did."""

    results: tuple[bool | float | str, ...]  # a text says what went wrong
    failed: str | None = None
    printed: str = ""


def run(
    program: str,
    parts: Sequence[str],
    *,
    text: str | None = None,
    limits: SandboxLimits = SandboxLimits(),
    until: Deadline | None = None,
) -> SandboxOutcome:
    """Runs a Python program, and then its parts one after the other: further code, or with `text` the names
    of functions that are called with it. Raises GlassloopError where there is no sandbox, `TimedOut` or
    `Cancelled` if the deadline is over."""
    if len(program) + sum(map(len, parts)) + len(text or "") > LONGEST_PROGRAM:
        return SandboxOutcome((), f"it is longer than {LONGEST_PROGRAM} characters")
    task = {"program": program, "parts": list(parts), "text": text, "call": text is not None}
    if until is not None:
        until.check()
        limits = replace(limits, seconds=max(_LEAST_SECONDS, min(limits.seconds, until.left)))
    child = _start({**task, **vars(limits)}, limits)
    try:
        return _outcome(child, limits)
    finally:
        child.end()


@cache
def check_available() -> None:
    """Raises GlassloopError if there is no sandbox on this machine."""
    run("", [], limits=SandboxLimits(seconds=30))


def _start(task: dict[str, Any], limits: SandboxLimits) -> Child:
    try:
        child = Child(_SCRIPT, {"PATH": os.defpath, "LANG": "C.UTF-8"})
    except OSError as error:
        raise GlassloopError(f"the sandbox cannot be started: {error.strerror}") from None
    patience = Patience(_SECONDS_TO_START)
    try:
        answer = child.ask(json.dumps(task).encode("utf-8", "surrogatepass"), patience, 4096)
        report = {} if answer is None else json.loads(answer)
    except (TimeoutError, ValueError):
        report = {}
    if not report.get("ready"):
        child.end()
        reason = report.get("refused", "its process does not answer")
        raise GlassloopError(f"programs are run only in a sandbox, and there is none here: {reason}")
    return child


def _outcome(child: Child, limits: SandboxLimits) -> SandboxOutcome:
    try:
        answer = child.receive(Patience(limits.seconds), 8 * limits.output + (1 << 20))
    except TimeoutError:
        return SandboxOutcome((), f"it takes more than {limits.seconds:g} seconds")
    except ValueError:
        return SandboxOutcome((), "it writes to where it must not")
    if answer is None:
        return SandboxOutcome((), _cause_of_death(child.wait(), limits))
    try:
        report = json.loads(answer)
        results = tuple(
            printable(each, _MOST_SHOWN) if isinstance(each, str) else each
            for each in report["results"]
            if isinstance(each, (bool, int, float, str))
        )
        failed = None if report["failed"] is None else printable(str(report["failed"]), _MOST_SHOWN)
        return SandboxOutcome(results, failed, printable(str(report["printed"]), _MOST_SHOWN))
    except (ValueError, KeyError, TypeError, RecursionError):
        return SandboxOutcome((), "it writes to where it must not")


def _cause_of_death(status: int, limits: SandboxLimits) -> str:
    if status == -24:  # SIGXCPU
        return f"it takes more than {limits.seconds:g} seconds"
    return "it ended its process" if status >= 0 else f"it was ended by signal {-status}"
