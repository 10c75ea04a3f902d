"""docs/exercises.md: every command in it runs, in one shell, in the order in which a reader types them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[1] / "docs" / "exercises.md"
LONG = 600  # seconds for all of it; about half a minute on a machine that is free


def commands() -> list[str]:
    blocks = re.findall(r"^```console\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.S | re.M)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


@pytest.mark.skipif(shutil.which("bash") is None, reason="the commands are for bash")
def test_every_command_of_the_exercises_runs(tmp_path):
    """Long: some thirty commands, each of which loads the model."""
    (tmp_path / "glassloop").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m glassloop "$@"\n')
    (tmp_path / "glassloop").chmod(0o755)
    asked = commands()
    assert len(asked) > 20
    numbered = [f"{command}\nprintf '\\n:::{number}\\n'" for number, command in enumerate(asked)]
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
    assert done.returncode == 0, f"{asked[len(said)]}\n{done.stderr[-500:]}"
    answers = dict(zip(asked, said, strict=True))
    assert answers["glassloop replay last"] == "identical, 40 of 40 tokens\n"
    assert all(text.strip() for command, text in answers.items() if command.startswith("glassloop"))
    assert (tmp_path / "it.svg").read_text().startswith("<svg")


def test_what_is_pasted_names_what_is_there():
    """The shape of the document: every block that has a command has its answer."""
    for block in re.findall(r"^```console\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.S | re.M):
        lines = block.splitlines()
        if lines[0].startswith("$ glassloop"):
            assert len([line for line in lines if not line.startswith("$ ")]) >= 1, lines[0]
