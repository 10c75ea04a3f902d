"""Stages of a user's own, good and bad. Each is a pure function of the tokens so far, so that a request ends
the same way whatever else runs; one of them keeps a memory, which changes nothing.
"""

from __future__ import annotations

import sys
from typing import Any
from zlib import crc32

from glassloop import stage

# One that a scenario may name, with the options that it takes. The first two are good, the others bad.
GOOD, RAISES, EXITS = ("crossing_lift", "crossing_memory"), "crossing_raises", "crossing_exits"

_remembered: dict[bytes, int] = {}


def _mixed(step: Any) -> int:
    """Returns a number that depends on every token of the branch."""
    return crc32(step.history.tokens.tobytes())


@stage("crossing_lift", kind="bias")
def lift(candidates: Any, step: Any, *, by: float = 1.0) -> Any:
    """Makes one token, which the text so far decides, more likely."""
    return candidates.moved([97 + _mixed(step) % 4], lambda logits: logits + by)


@stage("crossing_memory", kind="bias")
def memory(candidates: Any, step: Any) -> Any:
    """Does the same with a memory of its own that all requests share: the order of the calls is in it, and
    must not be in the result."""
    key = step.history.tokens.tobytes()
    if len(_remembered) > 1000:
        _remembered.clear()
    token = _remembered.setdefault(key, 97 + _mixed(step) % 4)
    return candidates.moved([token], lambda logits: logits + 0.5)


@stage("crossing_raises", kind="mask")
def raises(candidates: Any, step: Any, *, one_in: int = 10) -> Any:
    """Raises at some texts."""
    if _mixed(step) % one_in == 0:
        raise ValueError(f"no stage for {len(step.history)} tokens")
    return candidates


@stage("crossing_exits", kind="mask")
def exits(candidates: Any, step: Any, *, one_in: int = 10) -> Any:
    """Asks for the end of the process at some texts, as a plugin may that was a program once."""
    if _mixed(step) % one_in == 0:
        sys.exit("a stage has left")
    return candidates
