"""Regular expressions of users, compiled and searched in processes that can be ended: some take forever to
compile, others to search some texts.

`find_last` and `find_first` are for extractors, `is_found` is for verifiers. A few worker processes serve one
pattern after the other; one that exceeds its time is ended and replaced. All of them take an `until`: the
deadline of the caller.
"""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock
from typing import Any

from glassloop.engine.deadline import Deadline
from glassloop.engine.thread import Busy
from glassloop.errors import GlassloopError
from glassloop.util.child import Child, Patience
from glassloop.util.shown import shown

LONGEST_PATTERN = 2000  # characters
SECONDS = 2.0  # for one search, or for all patterns of a schema
_WORKERS = 3  # processes
_SECONDS_TO_WAIT = 10.0  # for one of them
_SECONDS_TO_START = 60.0
_SCRIPT = Path(__file__).with_name("pattern_worker.py")
_MOST = 1 << 22  # bytes of an answer


def is_found(pattern: str, text: str, until: Deadline | None = None) -> bool:
    """Returns whether a pattern matches somewhere in a text. Raises as `find_last`."""
    return _workers.ask(_short(pattern), text, "any", until) is True


def find_last(pattern: str, text: str, until: Deadline | None = None) -> str | None:
    """Returns the last match of a pattern, or its first group if it has groups; None if there is none. Raises
    GlassloopError for a pattern that is invalid or takes more than two seconds, `TimedOut` or `Cancelled` if
    no time is left, and `Busy` if other patterns take all of it."""
    return _text(_workers.ask(_short(pattern), text, "last", until))


def find_first(pattern: str, text: str, until: Deadline | None = None) -> str | None:
    """Returns the first match, as `find_last` the last."""
    return _text(_workers.ask(_short(pattern), text, "first", until))


def find_option(pattern: str, text: str, which: str, until: Deadline | None = None) -> str | None:
    """Returns the "first" or "last" match of a pattern that is made of options, however long it is."""
    try:
        return _text(_workers.ask(pattern, text, which, until))
    except GlassloopError as error:
        if error.field != "regex":
            raise
        problem = f"has options that take more than {SECONDS:g} seconds to look for"
        raise GlassloopError.about("extract", problem) from None


def check_pattern(pattern: str, until: Deadline | None = None) -> None:
    """Raises GlassloopError if a pattern is not a regular expression, or takes too long to compile."""
    _workers.ask(_short(pattern), "", "valid", until)


def pattern_seconds(until: Deadline | None, what: str) -> Deadline:
    """Returns the deadline for patterns that share the seconds of one, as those of a schema do."""
    if until is None:
        return Deadline(SECONDS, what)
    until.check()
    return Deadline(min(SECONDS, until.left), what)


def _short(pattern: str) -> str:
    if len(pattern) > LONGEST_PATTERN:
        problem = f"has {len(pattern)} characters; at most {LONGEST_PATTERN} are expected"
        raise GlassloopError.about("regex", problem)
    return pattern


def _text(found: object) -> str | None:
    return found if isinstance(found, str) else None


class _Turns:
    """Places that threads take in the order in which they ask for one: who gives one back and asks again is
    the last."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._lock = Lock()
        self._waiting: deque[Event] = deque()

    def take(self, seconds: float) -> bool:
        """Takes a place; returns False if there is none within this time."""
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            turn = Event()
            self._waiting.append(turn)
        if turn.wait(seconds):
            return True
        with self._lock:
            if turn.is_set():
                return True
            self._waiting.remove(turn)
            return False

    def give_back(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1


class _Workers:
    """The processes that search; each is started when it is first needed. Threads share them."""

    def __init__(self) -> None:
        self._places = _Turns(_WORKERS)
        self._idle: list[Child] = []

    def ask(self, pattern: str, text: str, wanted: str, until: Deadline | None) -> Any:
        """Returns the match of a pattern, or whether there is one."""
        data = json.dumps([pattern, text, wanted]).encode()
        with self._worker(until) as child:
            answer = _send(child, data, pattern, until)
        error, found = json.loads(answer)
        if error is not None:
            problem = f"is {shown(pattern)}; a regular expression is expected ({error})"
            raise GlassloopError.about("regex", problem)
        return found

    @contextmanager
    def _worker(self, until: Deadline | None) -> Iterator[Child]:
        """Lends a process, which is ended if it fails its user."""
        if until is not None:
            until.check()
        seconds = _SECONDS_TO_WAIT if until is None else min(_SECONDS_TO_WAIT, until.left)
        if not self._places.take(seconds):
            if until is not None:
                until.check()
            raise Busy("other patterns are searched, for too long; try again later")
        try:
            child = self._idle.pop() if self._idle else _start()
            child = child if child.alive() else _start()
            try:
                yield child
            except BaseException:
                child.end()
                raise
            self._idle.append(child)
        finally:
            self._places.give_back()


def _start() -> Child:
    child = Child([sys.executable, "-I", "-S", str(_SCRIPT)], {"PATH": os.environ.get("PATH", "")})
    try:
        child.receive(Patience(_SECONDS_TO_START), 64)  # "ready"
    except TimeoutError:
        child.end()
        raise GlassloopError.about("regex", "cannot be searched: its process does not start") from None
    return child


def _send(child: Child, data: bytes, pattern: str, until: Deadline | None) -> bytes:
    patience = Patience(SECONDS if until is None else min(SECONDS, until.left))
    try:
        child.send(data, patience)
        answer = child.receive(patience, _MOST)
    except (TimeoutError, ValueError):
        answer = None
    if answer is None:
        if until is not None:
            until.check()
        problem = f"is {shown(pattern)}, which takes more than {SECONDS:g} seconds or too much memory"
        raise GlassloopError.about("regex", problem)
    return answer


_workers = _Workers()
os.register_at_fork(after_in_child=_workers.__init__)  # type: ignore[misc]
