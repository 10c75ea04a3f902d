"""`glassloop tokenize`, as a person at a terminal, a pipe and a program see it."""

from __future__ import annotations

import base64
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "glassloop", "tokenize"]
# An environment of its own: nothing of the caller's decides about colour or width.
QUIET = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
ENVIRONMENT = {**QUIET, "TERM": "xterm-256color", "PYTHONUTF8": "1"}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A vocabulary of bytes and two words, in a rank file."""
    path: Path = tmp_path_factory.mktemp("ranks") / "cl100k_base.tiktoken"
    tokens = [*(bytes([b]) for b in range(256)), b"he", b" he"]
    path.write_text("".join(f"{base64.b64encode(t).decode()} {i}\n" for i, t in enumerate(tokens)))
    return str(path)


def _run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *arguments], input=stdin, capture_output=True, env=ENVIRONMENT, check=False
    )


def _on_a_terminal(*arguments: str, **environment: str) -> str:
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*COMMAND, *arguments], stdout=theirs, env={**ENVIRONMENT, **environment})
    os.close(theirs)
    shown = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
    os.close(ours)
    assert process.wait() == 0
    return shown.decode()


def test_a_pipe_gets_one_token_a_line(ranks: str) -> None:
    run = _run("he he\n🎈<|endoftext|>", "--model", ranks)
    assert run.returncode == 0 and run.stderr == b""
    lines = [line.split("\t") for line in run.stdout.decode().splitlines()]
    assert lines[:3] == [["256", "he", "6865"], ["257", "·he", "206865"], ["10", "⏎", "0a"]]
    assert [line[1] for line in lines[3:7]] == ["<0xF0>", "<0x9F>", "<0x8E>", "<0x88>"]
    assert lines[7][:2] == ["100257", "<|endoftext|>"]


def test_json_is_one_object(ranks: str) -> None:
    text = "he é<|endoftext|>"
    found = json.loads(_run(text, "-m", ranks, "--json").stdout)
    assert found["model"] == ranks and found["text"] == text and found["count"] == len(found["tokens"]) == 5
    assert found["tokens"][0] == {"id": 256, "piece": "he", "text": "he", "bytes": "6865", "special": False}
    assert found["tokens"][2] == {
        "id": 195,
        "piece": "<0xC3>",
        "text": "\ufffd",
        "bytes": "c3",
        "special": False,
    }
    assert found["tokens"][-1]["special"] is True
    assert bytes.fromhex("".join(token["bytes"] for token in found["tokens"])).decode() == text


def test_no_special_reads_everything_as_text(ranks: str) -> None:
    found = json.loads(_run("<|endoftext|>", "-m", ranks, "--json", "--no-special").stdout)
    assert found["count"] == 13 and not any(token["special"] for token in found["tokens"])


def test_a_dash_reads_stdin_exactly(ranks: str) -> None:
    found = json.loads(_run("-", "-m", ranks, "--json", stdin=b" he\r\n").stdout)
    assert found["text"] == " he\r\n"
    run = _run("-", "-m", ranks, stdin=b"a\xff")
    assert run.returncode == 2 and run.stderr == b"glassloop: stdin is not UTF-8 text: byte 1 is 0xFF\n"


def test_a_terminal_shows_neighbours_in_different_colours(ranks: str) -> None:
    shown = _on_a_terminal("he he\x1b[31m", "-m", ranks)
    first = shown.splitlines()[0]
    he, space_he = first.index("he"), first.index("·he")
    colour_before = [first[:place].rsplit("\x1b[", 1)[1] for place in (he, space_he)]
    assert colour_before[0] != colour_before[1]
    assert "\\x1b" in shown and "\x1b[31m" not in shown.replace(
        "\x1b[0m", ""
    )  # the text's own escape is not obeyed
    assert "7 tokens" in shown


def test_no_colour_when_not_wanted(ranks: str) -> None:
    shown = _on_a_terminal("he he", "-m", ranks, NO_COLOR="1")
    assert "\x1b[3" not in shown and "\x1b[4" not in shown
    assert "he│·he" in shown


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("x", "-m", "no-such-model"), "no-such-model"),
        (("x", "-m", "/nowhere/x.tiktoken"), "/nowhere/x.tiktoken"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments: tuple[str, ...], complaint: str) -> None:
    run = _run(*arguments)
    assert run.returncode == 2 and run.stdout == b""
    assert complaint in run.stderr.decode() and run.stderr.count(b"\n") == 1


def test_colours_in_a_pipe_if_told_so(ranks: str) -> None:
    shown = _run("he he", "--model", ranks, "--color", "always").stdout
    assert b"\x1b[" in shown
    assert b"\x1b[" not in _run("he he", "--model", ranks).stdout
    shown_there = _on_a_terminal("he he", "--model", ranks, "--color", "never")
    assert "\x1b[3" not in shown_there and "\x1b[4" not in shown_there
