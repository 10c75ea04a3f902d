"""Regular expressions of users, run in a process that can be ended: some patterns take forever on some texts.

`find_last` and `find_first` are for extractors, `is_found` is for verifiers. A worker process serves one
pattern after the other; one that exceeds its time is ended and replaced.
"""

from __future__ import annotations

import json
import os
import re
import sys
from functools import lru_cache
from pathlib import Path
from threading import Lock

from glassloop.child import Child, Patience
from glassloop.errors import GlassloopError
from glassloop.shown import shown

LONGEST_PATTERN = 2000  # characters
SECONDS = 2.0  # for one search
_SECONDS_TO_START = 60.0
_SCRIPT = Path(__file__).with_name("pattern_worker.py")
_MOST = 1 << 22  # bytes of an answer


def is_found(pattern: str, text: str) -> bool:
    """Returns whether a pattern matches somewhere in a text. Raises as `find_last`."""
    return _worker.ask(checked(pattern), text, "any") is True


def find_last(pattern: str, text: str) -> str | None:
    """Returns the last match of a pattern, or its first group if it has groups; None if there is none. Raises
    GlassloopError for a pattern that is invalid or takes more than two seconds."""
    return _worker.find(checked(pattern), text, "last")


def find_first(pattern: str, text: str) -> str | None:
    """Returns the first match, as `find_last` the last."""
    return _worker.find(checked(pattern), text, "first")


@lru_cache(maxsize=256)
def checked(pattern: str) -> str:
    """Returns the pattern; raises GlassloopError if it is not a regular expression."""
    if len(pattern) > LONGEST_PATTERN:
        problem = f"has {len(pattern)} characters; at most {LONGEST_PATTERN} are expected"
        raise GlassloopError.about("regex", problem)
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        problem = f"is {shown(pattern)}; a regular expression is expected ({error})"
        raise GlassloopError.about("regex", problem) from None
    return pattern


class _Worker:
    """The process that searches; started at the first search. Threads share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._child: Child | None = None

    def find(self, pattern: str, text: str, which: str) -> str | None:
        found = self.ask(pattern, text, which)
        return found if isinstance(found, str) else None

    def ask(self, pattern: str, text: str, which: str) -> str | bool | None:
        """Returns the "first" or the "last" match, or, with "any", whether there is one."""
        with self._lock:
            child = self._child if self._child is not None and self._child.alive() else self._start()
            answer = self._send(child, json.dumps([pattern, text, which]).encode(), pattern)
        found: str | bool | None = json.loads(answer)
        return found

    def _start(self) -> Child:
        env = {"PATH": os.environ.get("PATH", "")}
        child = Child([sys.executable, "-I", "-S", str(_SCRIPT)], env)
        self._child = child
        try:
            child.receive(Patience(_SECONDS_TO_START), 64)  # "ready"
        except TimeoutError:
            self._end()
            raise GlassloopError.about("regex", "cannot be searched: its process does not start") from None
        return child

    def _send(self, child: Child, data: bytes, pattern: str) -> bytes:
        patience = Patience(SECONDS)
        try:
            child.send(data, patience)
            answer = child.receive(patience, _MOST)
        except (TimeoutError, ValueError):
            answer = None
        if answer is None:
            self._end()
            problem = f"is {shown(pattern)}, which takes more than {SECONDS:g} seconds or too much memory"
            raise GlassloopError.about("regex", problem)
        return answer

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


_worker = _Worker()
os.register_at_fork(after_in_child=_worker.__init__)  # type: ignore[misc]
