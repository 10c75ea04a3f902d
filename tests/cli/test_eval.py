"""`glassloop eval` as a person or a script runs it: stdout, stderr and the exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hostile.tiny import write_tiny

COMMAND = [sys.executable, "-c", "from glassloop.cli.main import main; main()", "eval"]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[Path, Path]:
    """A tiny model and a task."""
    folder = tmp_path_factory.mktemp("eval")
    task = folder / "task.jsonl"
    task.write_text("".join(json.dumps({"prompt": f"What is {n}?", "answer": n}) + "\n" for n in range(4)))
    return write_tiny(folder / "tiny.gguf"), task


def run(files: tuple[Path, Path], *arguments: str, status: int = 0) -> tuple[str, str]:
    model, task = files
    command = [*COMMAND, str(task), "--model", str(model), "--kv-memory", "16MB", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


def test_a_table_for_people_and_one_line_of_json(files: tuple[Path, Path], tmp_path: Path) -> None:
    record, plot = tmp_path / "record.jsonl", tmp_path / "plot.svg"
    given = ("--methods", "greedy,vote:2", "--method", "likelihood:2", "--extract", "number", "--limit", "3")
    given += ("--max-tokens", "12", "--record", str(record), "--seed", "4")
    out, _ = run(files, *given, "--plot", str(plot))
    *table, last = out.splitlines()
    assert any("95 % interval" in line for line in table) and any("McNemar" in line for line in table)
    rows = json.loads(last)
    assert [row["method"] for row in rows] == ["greedy", "vote:2", "likelihood:2"]
    for row in rows:
        assert {"accuracy", "low", "high", "items", "tokens", "seconds"} <= row.keys() and row["items"] == 3
    assert plot.read_text().startswith("<svg")
    before = record.read_bytes()
    again, _ = run(files, *given, "--json")
    assert json.loads(again) == rows and record.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--methods", "magic"), "method is 'magic'"),
        (("--methods", "vote:x"), "a number of paths from 1 to 1024"),
        (("--extract", "nothing"), "extract is 'nothing'"),
        (("--limit", "0"), "limit is 0"),
        (("--temperature", "-1"), "temperature"),
    ],
)
def test_errors_are_one_line(files: tuple[Path, Path], arguments: tuple[str, ...], told: str) -> None:
    out, err = run(files, *arguments, status=2)
    assert out == "" and err.startswith("glassloop: ") and told in err and err.count("\n") == 1
