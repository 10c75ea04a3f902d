"""`glassloop solve` as a program: its streams, its JSON, its file, and its errors."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from hostile.tiny import write_tiny
from rich.console import Console

from glassloop import LLM, Solution
from glassloop.cli.solve import _table
from glassloop.search.solve import drive, prepare


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def solve(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "glassloop", "solve", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_text_is_on_stdout_and_the_rest_on_stderr(tiny, tmp_path):
    flags = ("--model", tiny, "--raw", "--n", 3, "--max-tokens", 6, "--seed", 4, "--extract", "text")
    made = solve("hello", *flags, "--trace", tmp_path / "a.glass")
    assert made.returncode == 0, made.stderr
    with LLM(tiny, kv_memory="16MB") as llm:
        expected = llm.solve("hello", n=3, max_tokens=6, seed=4, extract="text", chat=False)
        read = Solution.load(tmp_path / "a.glass", llm=llm)
        assert [path.tokens for path in read.paths] == [path.tokens for path in expected.paths]
    assert made.stderr.count("path ") >= 4 and "vote, 3 paths, 18 tokens" in made.stderr
    plain = solve("hello", *flags, "--json", "--paths", "--no-store")
    told = json.loads(plain.stdout)
    assert told["votes"] == expected.votes and told["value"] == expected.value and plain.stderr == ""
    assert [path["text"] for path in told["paths"]] == [path.text for path in expected.paths]


def test_answers_are_shown_as_they_are_with_the_votes_so_far(tiny):
    """An answer that looks like markup of the library that draws the table is no markup."""
    with LLM(tiny, kv_memory="16MB") as llm:
        options = {"n": 2, "seed": 4, "max_tokens": 4, "chat": False, "extract": lambda text: "[/red]x"}
        running = prepare(llm, "hello", "vote", **options)
        drive(running, None)
        best = prepare(llm, "hello", "best", verify=lambda text: False, **options)
        drive(best, None)
    screen = Console(file=io.StringIO(), width=100)
    screen.print(_table(running))
    shown = screen.file.getvalue()
    assert shown.count("[/red]x") == 3 and "[/red]x ×2 (100 %)" in shown
    screen.print(_table(best))
    assert screen.file.getvalue().count("failed (score 0)") == 2


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--method", "votes"), "method is 'votes'; one of beam"),
        (("--budget", "tokens=0"), "budget.tokens is 0"),
        (("--option", "wave=3"), "wave is not an option of the method vote"),
        (("--option", "n=3", "--n", "4"), "n is given twice"),
        (("--method", "best"), "verify is missing; the method best needs a verifier"),
        (("--judge", "nobody"), "judge is 'nobody'"),
        (("--extract", "regex:("), "a regular expression is expected"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(arguments, message):
    made = solve("hello", *arguments)  # before a model is loaded
    assert made.returncode == 2 and message in made.stderr and made.stderr.count("\n") == 1
