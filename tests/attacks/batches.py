"""Tries many inputs in child processes, so that a crash or a hang costs one child and names one input."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from attacks.limits import LIMITS
from waiting import awake

_TESTS = Path(__file__).parents[1]
_STARTING = 60.0  # seconds until a child has begun its first input


@dataclass
class Tally:
    """What came of a batch. A finding is (number, what happened)."""

    kind: str
    seed: int
    count: int = 0
    used: int = 0
    refused: int = 0
    crashes: list[tuple[int, str]] = field(default_factory=list)
    hangs: list[tuple[int, str]] = field(default_factory=list)
    errors: list[tuple[int, str]] = field(default_factory=list)
    heavy: list[tuple[int, str]] = field(default_factory=list)  # more memory than is allowed
    slowest: float = 0.0
    most: int = 0  # bytes

    @property
    def findings(self) -> list[tuple[int, str]]:
        return [*self.crashes, *self.hangs, *self.errors, *self.heavy]

    def figures(self) -> dict[str, Any]:
        lists = ("crashes", "hangs", "errors", "heavy")
        numbers = {name: len(getattr(self, name)) for name in lists}
        return {
            "kind": self.kind,
            "cases": self.count,
            "used": self.used,
            "refused": self.refused,
            **numbers,
            "slowest_s": round(self.slowest, 3),
            "most_mb": self.most >> 20,
        }

    def check(self) -> None:
        again = f"python -m attacks.child {self.kind} {self.seed} NUMBER 1"
        told = [f"#{number}: {what}" for number, what in self.findings[:20]]
        alike = Counter(what.strip().splitlines()[-1][:160] for _, what in self.findings)
        summary = [f"{times} x {what}" for what, times in alike.most_common(20)]
        assert not self.findings, "\n".join([f"{self.figures()}; again: {again}", *summary, *told])


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(_TESTS), *(each for each in sys.path if each)])
    return os.environ | {"PYTHONPATH": path, "PYTHONFAULTHANDLER": "1"}


def run(
    kind: str,
    seed: int,
    count: int,
    *,
    first: int = 0,
    seconds: float = 20.0,
    env: dict[str, str] | None = None,
    progress: Callable[[Tally], None] = lambda tally: None,
    until: float = float("inf"),
    most_findings: int = 200,
) -> Tally:
    """Try the inputs `first` to `first + count`; `seconds` is what one of them may take. It ends early at the
    time `until` (of `time.monotonic`) or after so many findings."""
    tally = Tally(kind, seed)
    number, end = first, first + count
    while number < end and time.monotonic() < until and len(tally.findings) < most_findings:
        number = _child(tally, number, end - number, seconds, environment() | (env or {}), progress, until)
    return tally


def _child(
    tally: Tally,
    first: int,
    count: int,
    seconds: float,
    env: dict[str, str],
    progress: Callable[[Tally], None],
    until: float,
) -> int:
    """One child until it is done, dies or hangs; the number of the input to go on with."""
    with tempfile.TemporaryFile() as errors:
        command = [sys.executable, "-m", "attacks.child", tally.kind, str(tally.seed), str(first), str(count)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=env, text=True)
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_read, args=(child, lines), daemon=True).start()
        at, begun = first, False
        try:
            while True:
                try:
                    line = _next(lines, seconds if begun else _STARTING)
                except queue.Empty:
                    child.send_signal(signal.SIGABRT)  # the fault handler writes where every thread is
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(5)
                    tally.count += 1
                    tally.hangs.append((at, f"{_said(errors)}\nno end after {seconds:.0f} s"))
                    return at + 1
                if line is None:
                    break
                told = json.loads(line)
                if "begin" in told:
                    at, begun = told["begin"], True
                    continue
                at += 1
                _note(tally, told)
                progress(tally)
                if time.monotonic() > until:
                    return first + count
            code = child.wait()
            if code == 0:
                return first + count
            if not begun:
                raise AssertionError(f"the child did not start: {_said(errors)}")
            tally.count += 1
            tally.crashes.append((at, f"{_said(errors)}\nthe process ended with {code}"))
            return at + 1
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            child.wait()


def _next(lines: queue.Queue[str | None], seconds: float) -> str | None:
    until = awake() + seconds
    while True:
        try:
            return lines.get(timeout=0.5)
        except queue.Empty:
            if awake() > until:
                raise


def _said(errors: IO[bytes]) -> str:
    errors.seek(0)
    text = errors.read().decode(errors="replace").partition("Extension modules:")[0]
    return text[:1500] + "\n...\n" + text[-1500:] if len(text) > 3000 else text


def _read(child: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        lines.put(line)
    lines.put(None)


def _note(tally: Tally, told: dict[str, Any]) -> None:
    tally.count += 1
    tally.slowest = max(tally.slowest, told["seconds"])
    tally.most = max(tally.most, told["grown"])
    if told["how"] == "error":
        tally.errors.append((told["end"], told["detail"]))
    elif told["grown"] > LIMITS.memory:
        tally.heavy.append((told["end"], f"memory grew by {told['grown'] >> 20} MB"))
    elif told["how"] == "used":
        tally.used += 1
    else:
        tally.refused += 1
