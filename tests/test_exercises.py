"""docs/exercises.md: every command in it runs, in one shell, in the order in which a reader types them, and
answers what the document says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from glassloop.ops import choose_ops

DOCUMENT = Path(__file__).parents[1] / "docs" / "exercises.md"
LONG = 600  # seconds for all of it; about half a minute on a machine that is free
WRITTEN_WITH = "native arithmetic 2"  # the op set of the document
# What no two readers see alike.
_OWN = (
    (r"^seed +\d+$", "SEED"),  # drawn where none is given; before the ids, as it may look like one
    (r"\b[0-9a-f]{16}\b|\b[0-9a-f]{8}\b", "ID"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME"),
    (r"[\d.]+ tokens/s", "SPEED"),
    (r"(\d\.\d\d/\d\.\d\d) +[\d.]+", r"\1 SPEED"),  # in the table of compare, behind `distinct-1/2`
)


def exchanges() -> list[tuple[str, str]]:
    """Returns the commands of the document, each with the answer that is pasted below it."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"^```console\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.S | re.M):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], ""))
            else:
                command, answer = found[-1]
                found[-1] = command, f"{answer}{line}\n"
    return found


def plain(text: str) -> str:
    """Returns an answer less all that is a reader's own, and less spaces: the width of columns depends on
    that."""
    for pattern, name in _OWN:
        text = re.sub(pattern, name, text, flags=re.M)
    return "\n".join([" ".join(line.split()) for line in text.strip().splitlines()])


_GUESSED = re.compile(r" The drafter had guessed (?:it|“.*?”; the model chose “.*?”)\.")
_SOURCE = re.compile(r" draft$", re.MULTILINE)  # the last column of `runs show`


def undrafted(text: str) -> str:
    """Returns a text without what it says of drafts: the speed of the machine decides which are made."""
    return _SOURCE.sub(" sampled", _GUESSED.sub("", text))


def fits(answer: str, pasted: str) -> bool:
    """Whether this is what is pasted, where a line that is only `…` stands for any lines."""
    parts = re.split(r"^…$", undrafted(pasted), flags=re.M)
    return re.fullmatch(".*".join(map(re.escape, parts)), undrafted(answer), re.S) is not None


@pytest.mark.skipif(shutil.which("bash") is None, reason="the commands are for bash")
def test_every_command_of_the_exercises_answers_what_is_pasted(tmp_path):
    """Long: some thirty commands, each of which loads the model."""
    (tmp_path / "glassloop").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m glassloop "$@"\n')
    (tmp_path / "glassloop").chmod(0o755)
    asked = exchanges()
    assert len(asked) > 20
    numbered = [f"{command}\nprintf '\\n:::{number}\\n'" for number, (command, _) in enumerate(asked)]
    done = subprocess.run(
        ["bash", "-c", "set -euo pipefail\n" + "\n".join(numbered)],
        capture_output=True,
        text=True,
        timeout=LONG,
        cwd=tmp_path,
        env=os.environ
        | {
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "GLASSLOOP_STORE": str(tmp_path / "runs.db"),
        },
    )
    said = re.split(r"\n:::\d+\n", done.stdout)[:-1]
    assert done.returncode == 0, f"{asked[len(said)][0]}\n{done.stderr[-500:]}"
    op_set = choose_ops().description
    for (command, pasted), answer in zip(asked, said, strict=True):
        expected, found = plain(pasted), plain(answer)
        if op_set == WRITTEN_WITH:  # with another op set a close choice may fall differently
            assert fits(found, expected), f"{command}\n{found}\n── but the document has ──\n{expected}"
        assert found or not expected, command
    assert dict(zip([command for command, _ in asked], said, strict=True))["glassloop replay last"] == (
        "identical, 50 of 50 tokens\n"
    )
    assert (tmp_path / "it.svg").read_text().startswith("<svg")


def test_every_command_has_its_answer():
    """Only what sets a variable says nothing."""
    for command, pasted in exchanges():
        assert pasted.strip() or not command.startswith("glassloop"), command
