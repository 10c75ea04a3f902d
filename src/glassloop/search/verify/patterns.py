"""Regular expressions of users, compiled and searched in processes that can be ended: some take forever to
compile, others to search some texts.

`find_last` and `find_first` are for extractors, `is_found` is for verifiers. A few worker processes serve one
pattern after the other; one that exceeds its time is ended and replaced. All functions take an `until`: the
deadline of the caller.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from glassloop.engine.deadline import Deadline
from glassloop.engine.thread import Busy
from glassloop.errors import GlassloopError
from glassloop.util.child import Child, Patience
from glassloop.util.child_pool import ChildPool
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
    return _ask(_short(pattern), text, "any", until) is True


def find_last(pattern: str, text: str, until: Deadline | None = None) -> str | None:
    """Returns the last match of a pattern, or its first group if it has groups; None if there is none. Raises
    GlassloopError for a pattern that is invalid or takes more than two seconds, `TimedOut` or `Cancelled` if
    no time is left, and `Busy` if other patterns take all of it."""
    return _text(_ask(_short(pattern), text, "last", until))


def find_first(pattern: str, text: str, until: Deadline | None = None) -> str | None:
    """Returns the first match, as `find_last` the last."""
    return _text(_ask(_short(pattern), text, "first", until))


def find_option(pattern: str, text: str, which: str, until: Deadline | None = None) -> str | None:
    """Returns the "first" or "last" match of a pattern that is made of options, however long it is."""
    try:
        return _text(_ask(pattern, text, which, until))
    except GlassloopError as error:
        if error.field != "regex":
            raise
        problem = f"has options that take more than {SECONDS:g} seconds to look for"
        raise GlassloopError.about("extract", problem) from None


def check_pattern(pattern: str, until: Deadline | None = None) -> None:
    """Raises GlassloopError if a pattern is not a regular expression, or takes too long to compile."""
    _ask(_short(pattern), "", "valid", until)


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


def _text(match: object) -> str | None:
    return match if isinstance(match, str) else None


def _ask(pattern: str, text: str, wanted: str, until: Deadline | None) -> Any:
    """Returns the match of a pattern, or whether there is one."""
    if until is not None:
        until.check()
    data = json.dumps([pattern, text, wanted]).encode()
    seconds = _SECONDS_TO_WAIT if until is None else min(_SECONDS_TO_WAIT, until.left)
    try:
        with _pool.lend(None, seconds) as worker:
            answer = _answer(worker, data, pattern, until)
    except TimeoutError:
        if until is not None:
            until.check()
        raise Busy("other patterns are searched, for too long; try again later") from None
    error, match = json.loads(answer)
    if error is not None:
        problem = f"is {shown(pattern)}; a regular expression is expected ({error})"
        raise GlassloopError.about("regex", problem)
    return match


def _start(_: None) -> Child:
    worker = Child(_SCRIPT, {"PATH": os.environ.get("PATH", "")})
    try:
        worker.receive(Patience(_SECONDS_TO_START), 64)  # "ready"
    except TimeoutError:
        worker.end()
        raise GlassloopError.about("regex", "cannot be searched: its process does not start") from None
    return worker


def _answer(worker: Child, data: bytes, pattern: str, until: Deadline | None) -> bytes:
    patience = Patience(SECONDS if until is None else min(SECONDS, until.left))
    try:
        answer = worker.ask(data, patience, _MOST)
    except (TimeoutError, ValueError):
        answer = None
    if answer is None:
        if until is not None:
            until.check()
        problem = f"is {shown(pattern)}, which takes more than {SECONDS:g} seconds or too much memory"
        raise GlassloopError.about("regex", problem)
    return answer


_pool = ChildPool(_start, _WORKERS)
