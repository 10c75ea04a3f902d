"""Compiles and searches regular expressions in a process of its own, which `patterns.py` starts as a script
and may end.

A message is a JSON list of a pattern, a text, and what is wanted: "valid" if the pattern is only compiled,
the "first" or the "last" match, or "any" if only whether there is one. The answer is a JSON list: what is
wrong with the pattern or null, and the match, or true or false. It imports only the standard library, so that
it starts quickly.
"""

from __future__ import annotations

import json
import os
import re
import resource
import struct
from typing import Any

_SIZE = struct.Struct("<I")
_MEMORY = 1 << 29
_NICE = 5  # below the engine: patterns of users must not slow down the tokens of others


def _serve() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICE)
    _write(b"ready")
    while True:
        pattern, text, wanted = json.loads(_read(_SIZE.unpack(_read(_SIZE.size))[0]))
        try:
            compiled = re.compile(pattern, re.MULTILINE)
        except (re.error, RecursionError, OverflowError) as error:
            _write(json.dumps([str(error), None]).encode())
            continue
        _write(json.dumps([None, _find(compiled, text, wanted)]).encode())


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


def _read(size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = os.read(0, min(size - len(data), 1 << 20))
        if not chunk:
            os._exit(0)
        data += chunk
    return bytes(data)


def _write(data: bytes) -> None:
    rest = memoryview(_SIZE.pack(len(data)) + data)
    while rest:
        rest = rest[os.write(1, rest) :]


if __name__ == "__main__":
    _serve()
