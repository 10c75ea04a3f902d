"""Plays a scenario under a watchdog: one that does not end is a failure too, with the place where it is."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass
from threading import Thread

from crossings.draw import Scenario
from crossings.laws import Broken, Judge
from crossings.play import play

LIMIT = 180.0  # seconds that a scenario may take; most take about a tenth of one


@dataclass(frozen=True)
class Failure:
    """The law that a scenario breaks; an error that nothing expects is one too."""

    law: str
    detail: str
    stack: str = ""

    @property
    def line(self) -> str:
        return f"{self.law}: {' '.join(self.detail.split())[:400]}"


def guarded(scenario: Scenario, limit: float = LIMIT) -> Judge | Failure:
    """Plays a scenario. Returns what was counted, or the failure."""
    results: list[Judge | Failure] = []

    def attempt() -> None:
        try:
            results.append(play(scenario))
        except Broken as broken:
            results.append(Failure(broken.law, broken.detail, traceback.format_exc()))
        except BaseException as error:
            results.append(Failure(f"error {type(error).__name__}", str(error), traceback.format_exc()))

    thread = Thread(target=attempt, name="scenario", daemon=True)
    thread.start()
    thread.join(limit)
    return results[0] if results else Failure("hang", f"no end after {limit:g} s: {_where()}", _stacks())


def _where() -> str:
    """Returns the innermost function of each thread that is not idle here."""
    frames = [traceback.extract_stack(frame)[-1] for frame in sys._current_frames().values()]
    return ", ".join(f"{frame.name} ({frame.filename.rsplit('/', 1)[-1]}:{frame.lineno})" for frame in frames)


def _stacks() -> str:
    return "\n".join("".join(traceback.format_stack(frame)) for frame in sys._current_frames().values())
