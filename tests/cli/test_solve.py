"""`glassloop solve` as a program: its streams, its JSON, its file, and its errors."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hostile.tiny import write_tiny

from glassloop import LLM, Solution


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


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--method", "votes"), "method is 'votes'; one of beam"),
        (("--budget", "tokens=0"), "budget.tokens is 0"),
        (("--option", "wave=3"), "wave is not an option of the method vote"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(arguments, message):
    made = solve("hello", *arguments)  # before a model is loaded
    assert made.returncode == 2 and message in made.stderr and made.stderr.count("\n") == 1
