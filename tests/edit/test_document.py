"""docs/editing.md: the worked example prints what the page says, and the calls at the top of it exist."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
from pathlib import Path

from glassloop import LLM, Sampling

DOCUMENT = Path(__file__).parents[2] / "docs" / "editing.md"


def test_the_example_prints_what_the_page_says():
    found = re.search(
        r"```python\n(from math.*?)```\nIt prints:\n```text\n(.*?)```", DOCUMENT.read_text(), re.S
    )
    program, printed = found.groups()
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        exec(compile(program, str(DOCUMENT), "exec"), {})
    assert written.getvalue() == printed


def test_the_calls_of_the_page_exist():
    text = DOCUMENT.read_text()
    for name in re.findall(r"llm\.(\w+)\(", text):
        assert hasattr(LLM, name), name
    for name in set(re.findall(r"Sampling\((\w+)=", text)):
        assert name in inspect.signature(Sampling).parameters
