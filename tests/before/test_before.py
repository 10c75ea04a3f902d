"""What an earlier version wrote and answered is read, replayed and answered in the same way now.

`files/` was written by the code of November 2026, before its modules were moved: runs of every kind on the
default model, a search, edits, a store, the answers of a server (answers.py), and the flags of every command.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from before.answers import answers
from cli.terminal import run as glassloop
from server.conftest import serving

from glassloop import LLM, Edit, Run, Solution, Store

FILES = Path(__file__).parent / "files"
FLAGS = json.loads((FILES / "flags.json").read_text())


@pytest.fixture(scope="module")
def llm():
    with LLM(kv_memory="200MB") as model:
        yield model


@pytest.mark.parametrize("path", sorted(FILES.glob("*.glass")), ids=lambda path: path.stem)
def test_a_run_of_before_replays_as_identical(path, llm):
    run = Run.load(path)
    for sample in run.samples or [run]:
        verdict = sample.replay(llm)
        assert verdict.identical, verdict
    assert run.explain(0, llm=llm).difference is None


def test_a_search_and_edits_of_before_replay_as_identical(llm):
    solution = Solution.load(FILES / "search.glass", llm=llm)
    assert solution.replay(llm).identical
    for name in ("infill", "repair"):
        assert Edit.load(FILES / f"{name}.json").replay(llm).identical


def test_a_store_of_before_is_read(tmp_path, llm):
    shutil.copy(FILES / "store.db", tmp_path / "store.db")
    store = Store(tmp_path / "store.db")
    runs = [store.get(entry.id) for entry in store.list()]
    assert sorted(run.reason or "" for run in runs) == ["", "", "", "edited"]
    assert all(run.replay(llm).identical for run in runs)


def test_the_server_answers_as_before(tmp_path):
    before = json.loads((FILES / "answers.json").read_text())
    flags = ("--kv-memory", "200MB", "--model-defaults")
    with serving(*flags, env={"GLASSLOOP_STORE": str(tmp_path / "store.db")}) as server:
        now = json.loads(json.dumps(dict(answers(server.url))))
    assert set(now) == set(before)
    for name, answer in before.items():
        assert list(differences(answer, now[name], name)) == []


# Fields that answers have got since, by place. A client of before does not read them.
MODEL_FIELDS = {"type", "display_name", "created_at"}
ADDED = {
    "model.body": MODEL_FIELDS,
    "response.body": {"background", "conversation", "reasoning"},
    "models.body": {"first_id", "last_id", "has_more"},
    "models.body.data[0]": MODEL_FIELDS,
}


def differences(before: Any, now: Any, path: str) -> Iterator[str]:
    """Yields where two JSON values differ."""
    added: set[str] = ADDED.get(path, set())
    if isinstance(before, dict) and isinstance(now, dict) and set(before) | added == set(now):
        for key in before:
            yield from differences(before[key], now[key], f"{path}.{key}")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for place, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from differences(old, new, f"{path}[{place}]")
    elif before != now:
        yield f"{path}: {before!r} is now {now!r}"


@pytest.mark.parametrize("command", FLAGS, ids=lambda command: command or "glassloop")
def test_a_command_has_the_flags_of_before(command):
    shown = glassloop(*command.split(), "--help", COLUMNS="200").stdout
    assert [flag for flag in FLAGS[command] if flag not in shown] == []
