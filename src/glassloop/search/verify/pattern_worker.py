"""Compiles and searches regular expressions in a process of its own, which `patterns.py` may end.

This file is the script of a child process (see `util/child.py`). A message is a JSON list of a pattern, a
text, and what is wanted: "valid" if the pattern is only compiled, the "first" or the "last" match, or "any"
if only whether there is one. The answer is a JSON list: what is wrong with the pattern or null, and the
match, or true or false. It imports only the standard library, so that it starts quickly.
"""

from __future__ import annotations

import json
import os
import re
import resource
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassloop.util.child_main import Parent

_MEMORY = 1 << 29  # bytes of address space
_NICE = 5  # below the engine: patterns of users must not slow down the tokens of others


def serve(parent: Parent) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICE)
    parent.send(b"ready")
    while True:
        pattern, text, wanted = json.loads(parent.receive())
        try:
            compiled = re.compile(pattern, re.MULTILINE)
        except (re.error, RecursionError, OverflowError) as error:
            parent.send(json.dumps([str(error), None]).encode())
            continue
        parent.send(json.dumps([None, _find(compiled, text, wanted)]).encode())


def _find(compiled: re.Pattern[str], text: str, wanted: str) -> Any:
    if wanted == "valid":
        return True
    last = None
    for last in compiled.finditer(text):  # noqa: B007
        if wanted != "last":
            break
    if wanted == "any":
        return last is not None
    return None if last is None else last.group(1 if compiled.groups else 0)
