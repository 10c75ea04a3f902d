"""`/api/training`: the curves of real run folders, and of damaged and hostile ones."""

from __future__ import annotations

import json
import os

import pytest

from glassloop.errors import GlassloopError
from glassloop.server.operation.settings import ServerSettings
from glassloop.server.studio.training import _curves, _folders, _last_points, _summary
from glassloop.train.curves import Curves
from glassloop.train.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    run = tmp_path / "play"
    run.mkdir()
    (run / "config.toml").write_text('steps = 500\nlr = 0.001\ntokenizer = "characters"\ndata = ["a.txt"]\n')
    curves = Curves(run / "curves.jsonl")
    for step in range(1, 301):
        curves.add(step=step, loss=4 / step, lr=0.001, norm=1.0, tokens=768 * step, seconds=0.5 * step)
        if step % 100 == 0:
            curves.add(step=step, validation=5 / step)
            curves.add(step=step, sample=f"<b>step {step}</b>\u202e")
    curves.close()
    return tmp_path


def test_a_run_is_told_with_its_curves_and_samples(folder):
    (run,) = _folders(folder).values()
    told = _curves(run, 100)
    assert (told["name"], told["step"], told["steps"], told["ended"]) == ("play", 300, 500, False)
    assert told["loss"] == 4 / 300 and told["validation"] == 5 / 300 and told["tokens"] == 768 * 300
    assert told["settings"] == {"steps": 500, "lr": 0.001, "tokenizer": "characters"}
    assert len(told["curves"]["loss"]) == 100
    step, value = told["curves"]["loss"][0]
    assert step == 2 and value == pytest.approx((4 + 2 + 4 / 3) / 3)
    assert told["curves"]["validation"] == [(100, 0.05), (200, 0.025), (300, 5 / 300)]
    assert {round(value) for _, value in told["curves"]["tokens_per_second"]} == {1536}
    assert [each["step"] for each in told["samples"]] == [100, 200, 300]
    os.utime(run.curves, (0, told["changed"] - 90))
    listed, told = _summary(run, _last_points(run)), _curves(run, 100)
    assert told["idle"] >= listed["idle"] >= 90
    assert listed | {"idle": 0} == {name: told[name] for name in listed} | {"idle": 0}
    (folder / "play" / "result.json").write_text("{}")
    assert _curves(run, 100)["ended"]


def test_a_folder_that_is_a_run_is_listed_too(folder):
    assert list(_folders(folder / "play")) == ["play"]
    assert _folders(folder / "missing") == {} and _folders(None) == {}


def test_only_runs_of_the_folder_can_be_named(folder):
    (folder / "no run").mkdir()
    (folder / "file").write_text("x")
    assert list(_folders(folder)) == ["play"]
    for name in ("..", ".", "play/../..", "/etc", "play\0"):
        assert name not in _folders(folder)


def test_damaged_curves_are_told_as_far_as_they_go(folder):
    path = folder / "play" / "curves.jsonl"
    lines = [
        "{",
        "[1]",
        '{"step": true, "loss": 1.0}',
        '{"step": 7, "loss": NaN, "validation": "x", "sample": 3}',
        '{"step": 8, "loss": 1e999, "lr": null, "tokens": 1e400, "seconds": [1]}',
        "[" * 100_000,
        json.dumps({"step": 9, "loss": 2.5, "sample": "a" * 10_000}),
        '{"step": 10, "lo',
    ]
    path.write_text("\n".join(lines))
    (folder / "play" / "config.toml").write_text("steps = [")
    told = _curves(RunFolder(folder / "play"), 50)
    assert (told["step"], told["loss"], told["steps"], told["settings"]) == (9, 2.5, None, {})
    assert told["curves"]["loss"] == [(9, 2.5)] and len(told["samples"][0]["text"]) == 4000
    json.dumps(told, allow_nan=False)


def test_a_pipe_is_no_run(folder):
    path = folder / "play" / "curves.jsonl"
    path.unlink()
    os.mkfifo(path)
    assert _folders(folder) == {}


def test_the_setting_is_checked(tmp_path):
    with pytest.raises(GlassloopError, match=r"--training is .*; a folder of training runs is expected"):
        ServerSettings("m", training=tmp_path / "none")


def test_a_server_without_the_setting_lists_none(server):
    assert server.get("/api/training").json() == {"runs": [], "shown": None}
    assert server.get("/api/training?run=play").status_code == 404
    assert server.get("/api/info").json()["training"] is False
