"""Runs Python blocks, each in a process of its own with no names but its own, and prints as JSON what each
prints and how it ended. With --compare, a value that a comment shows is compared with it:

    python tests/run_blocks.py [--compare] < BLOCKS.json

The processes are forks of this one, since importing takes longer than most blocks.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import traceback
from typing import Any

import numpy  # noqa: F401
from openai import OpenAI  # noqa: F401

from glassloop import LLM, Run, Sampling  # noqa: F401


def run(code: str) -> tuple[str, str]:
    """Returns what a block prints, and its traceback if it fails."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        with os.fdopen(write, "w", encoding="utf-8") as answer:
            json.dump(execute(code), answer)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as answer:
        printed, error = json.loads(answer.read() or '["", "the process ended without an answer"]')
    os.waitpid(child, 0)
    return printed, error


# A line whose comment is what its value is as a text; "…" stands for anything.
_VALUE = re.compile(
    r"^(?:print\((?P<printed>.+)\)|(?P<plain>.+?))  # (?P<text>identical, .*|they differ .*|“.*|True)$"
)


def checked(line: str) -> str:
    """Returns a line of a block that also compares its value with its comment, if that is one."""
    found = _VALUE.match(line) if "--compare" in sys.argv else None
    if found is None:
        return line
    return f"__check__({found['printed'] or found['plain']}, {found['text']!r})"


def check(value: Any, text: str) -> None:
    pattern = ".*".join(map(re.escape, text.split("…")))
    assert re.fullmatch(pattern, str(value), re.DOTALL), f"{value} is not {text}"


def execute(code: str) -> tuple[str, str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            compared = "\n".join(map(checked, code.splitlines()))
            exec(compile(compared, "<block>", "exec"), {"__name__": "__main__", "__check__": check})
        except BaseException:
            return printed.getvalue(), traceback.format_exc()
    return printed.getvalue(), ""


if __name__ == "__main__":
    json.dump([run(code) for code in json.load(sys.stdin)], sys.stdout)
