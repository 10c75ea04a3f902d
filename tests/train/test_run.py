"""A run ends with a model; killed at any step and resumed, with the same one."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from train.small import text_file, tiny_run
from waiting import wait_until

from glassloop.errors import GlassloopError
from glassloop.train import trainer as trainer_module
from glassloop.train.checkpoint import State, read_checkpoint
from glassloop.train.config import TrainError, TrainingInterrupted, config_text
from glassloop.train.curves import read_points
from glassloop.train.train import Trained, resume, train
from glassloop.util.files import sha256_of
from glassloop.util.progress import ProgressBar


class _Killed(Exception):
    pass


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    return text_file(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory) -> Trained:
    """A run that nothing stopped, with everything that could differ: dropout, accumulation, two epochs."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return train(tiny_run(data, dropout=0.1, accumulate=2), folder, quiet=True)


def test_loss_falls_and_the_folder_has_everything(whole):
    folder = whole.folder.parent
    points = read_points(folder / "curves.jsonl")
    losses = [point["loss"] for point in points if "loss" in point]
    assert len(losses) == 12 and losses[-1] < losses[0] - 0.5
    assert abs(losses[0] - math.log(30)) < 0.8  # a new model knows nothing: about log of the vocabulary
    assert [point["step"] for point in points if "validation" in point] == [4, 8, 12]
    assert any("sample" in point for point in points)
    for name in (
        "config.toml",
        "environment.json",
        "data.json",
        "curves.svg",
        "result.json",
        "model/config.json",
    ):
        assert (folder / name).stat().st_size
    assert json.loads((folder / "data.json").read_text())["sources"][0]["name"] == "text.txt"
    assert whole.steps == 12
    assert whole.validation == [point["validation"] for point in points if "validation" in point][-1]
    assert len(list((folder / "checkpoints").glob("step-*"))) == 2


@pytest.mark.parametrize("kill_at", [1, 4, 6, 11])
def test_a_killed_run_ends_with_the_same_bits(whole, data, tmp_path, kill_at):
    def die(step: int) -> None:
        if step == kill_at:
            raise _Killed

    config = tiny_run(data, dropout=0.1, accumulate=2)
    with pytest.raises(_Killed):
        train(config, tmp_path / "run", quiet=True, on_step=die)
    again = resume(tmp_path / "run", quiet=True)
    assert again.sha256 == whole.sha256
    strip = [
        [{k: v for k, v in point.items() if k != "seconds"} for point in read_points(f / "curves.jsonl")]
        for f in (whole.folder.parent, tmp_path / "run")
    ]
    assert strip[0] == strip[1]


def test_kill_minus_nine_leaves_a_run_that_goes_on(whole, data, tmp_path):
    """The process really dies, by SIGKILL in the middle of writing a checkpoint."""
    child = os.fork()
    if not child:
        real, calls = os.fsync, []

        def fsync(handle: int) -> None:
            calls.append(handle)
            if len(calls) == 7:  # two for each file; the fourth file is the checkpoint of step 8
                os.kill(os.getpid(), signal.SIGKILL)
            real(handle)

        os.fsync = fsync
        train(tiny_run(data, dropout=0.1, accumulate=2), tmp_path / "run", quiet=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert list((tmp_path / "run" / "checkpoints").glob("*.part"))  # the half that was written
    assert resume(tmp_path / "run", quiet=True).sha256 == whole.sha256
    assert not list((tmp_path / "run" / "checkpoints").glob("*.part"))


def test_ctrl_c_ends_a_run_after_a_step_and_it_goes_on(whole, data, tmp_path):
    def interrupt(step: int) -> None:
        if step == 5:
            signal.raise_signal(signal.SIGINT)

    config = tiny_run(data, dropout=0.1, accumulate=2)
    with pytest.raises(TrainingInterrupted, match="after step 6; go on: glassloop train resume") as stopped:
        train(config, tmp_path / "run", quiet=True, on_step=interrupt)
    assert stopped.value.step == 6  # between two checkpoints: this one is written for it
    again = resume(tmp_path / "run", quiet=True)
    assert again.sha256 == whole.sha256


@pytest.mark.parametrize("at", ["last step", "weights", "validation", "sample"])
def test_ctrl_c_at_the_end_leaves_the_whole_result(whole, data, tmp_path, monkeypatch, capfd, at):
    """Whatever it interrupts after the last step, the weights are those of a run that nothing stopped; what
    takes time is skipped, and said to be."""

    def press(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)

    when = {"last step": lambda step: step == 12 and press()}.get(at, lambda step: None)
    if at in ("validation", "sample"):
        kept = getattr(trainer_module.Trainer, f"_{'validate' if at == 'validation' else 'sample'}")

        def late(self, *arguments, **options):
            if self.state.step == 12:
                assert (tmp_path / "run" / "model" / "model.safetensors").exists()
                press()
            return kept(self, *arguments, **options)

        monkeypatch.setattr(trainer_module.Trainer, kept.__name__, late)
    config = tiny_run(data, dropout=0.1, accumulate=2)
    made = train(
        config, tmp_path / "run", on_step=when, on_weights=press if at == "weights" else lambda folder: None
    )
    assert made.sha256 == whole.sha256
    said = capfd.readouterr().err
    assert "sample skipped" in said and ("validation skipped" in said) == (at != "sample")
    assert resume(tmp_path / "run", quiet=True) == made


def test_killed_while_it_samples_a_run_has_its_weights(whole, data, tmp_path):
    """The process dies by SIGKILL in the sample after the last step."""
    child = os.fork()
    if not child:
        trainer_module.sample_tokens = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        train(tiny_run(data, dropout=0.1, accumulate=2, sample_every=0), tmp_path / "run", quiet=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert sha256_of(tmp_path / "run" / "model" / "model.safetensors") == whole.sha256
    assert resume(tmp_path / "run", quiet=True).sha256 == whole.sha256


def test_a_run_says_its_plan_and_what_it_does(data, tmp_path, capfd):
    train(tiny_run(data, accumulate=2), tmp_path / "run")
    said = capfd.readouterr().err
    plan = said.index("12 steps of 256 tokens (8 × 32); the data has ")
    assert plan < said.index(" s a step here, ") < said.index("step 12/12")
    assert said.index("the weights are written") < said.index("step 12: validation loss")
    assert said.index("step 12: validation loss") < said.index("sampling 8 tokens (Ctrl-C skips them)")


def test_what_takes_long_is_said(capfd):
    seen: list[str] = []
    with ProgressBar(3, 0) as progress:
        progress.now("reading")
        wait_until(lambda: seen.append(capfd.readouterr().err) or "reading, 0:0" in seen[-1])


def test_data_that_changed_meanwhile_are_refused(data, tmp_path):
    def die(step: int) -> None:
        raise _Killed

    with pytest.raises(_Killed):
        train(tiny_run(data), tmp_path / "run", quiet=True, on_step=die)
    shard = tmp_path / "run" / "tokens" / "tokens-00000.npy"
    shard.write_bytes(shard.read_bytes()[:-2] + b"\1\0")
    with pytest.raises(GlassloopError, match=r"tokens-00000\.npy: has another SHA-256 than its manifest"):
        resume(tmp_path / "run", quiet=True)


def test_another_seed_gives_other_weights(whole, data, tmp_path):
    other = train(tiny_run(data, dropout=0.1, accumulate=2, seed=1), tmp_path / "run", quiet=True)
    assert other.sha256 != whole.sha256


def test_a_folder_has_one_run(whole, data):
    with pytest.raises(TrainError, match="has a run already"):
        train(tiny_run(data), whole.folder.parent, quiet=True)
    assert resume(whole.folder.parent, quiet=True) == whole  # finished: nothing to do
    with pytest.raises(TrainError, match=r"no config\.toml"):
        resume(whole.folder)


def test_a_finished_run_may_be_moved(whole, tmp_path):
    moved = Path(shutil.copytree(whole.folder.parent, tmp_path / "moved"))
    assert resume(moved) == replace(whole, folder=moved / "model")


def test_a_second_process_is_refused(whole):
    from glassloop.train.run_folder import RunFolder

    with (
        RunFolder(whole.folder.parent).locked(),
        pytest.raises(TrainError, match="another process"),
        RunFolder(whole.folder.parent).locked(),
    ):
        pass


def _stopped(data: str, folder: Path) -> list[Path]:
    """Starts a run, stops it after step 9, and returns its checkpoints."""

    def die(step: int) -> None:
        if step == 9:
            raise _Killed

    with pytest.raises(_Killed):
        train(tiny_run(data, dropout=0.1, accumulate=2), folder, quiet=True, on_step=die)
    return sorted((folder / "checkpoints").glob("step-*"))


def test_a_damaged_checkpoint_is_named_and_an_older_one_used(whole, data, tmp_path, capfd):
    older, newest = _stopped(data, tmp_path / "run")
    raw = bytearray(newest.read_bytes())
    raw[-5] ^= 1
    newest.write_bytes(raw)
    assert resume(tmp_path / "run", quiet=True).sha256 == whole.sha256
    assert f"{newest}: is damaged" in capfd.readouterr().err
    assert older


def test_damaged_and_foreign_checkpoints_are_refused_in_words(data, tmp_path):
    paths = _stopped(data, tmp_path / "run")
    newest = paths[-1].read_bytes()
    for damaged in (newest[:100], newest[:-1], b"", b"hello, this is not a checkpoint", newest[:8] + b"{}"):
        for path in paths:
            path.write_bytes(damaged)
        with pytest.raises(TrainError, match=r"is not a whole checkpoint|not a checkpoint"):
            resume(tmp_path / "run", quiet=True)
    paths[-1].write_bytes(newest)
    config = tmp_path / "run" / "config.toml"
    config.write_text(config_text(tiny_run(data, dropout=0.1, accumulate=2, lr=1e-4)))
    with pytest.raises(TrainError, match="belongs to another run: its config"):
        resume(tmp_path / "run", quiet=True)


def test_nan_stops_the_run_and_keeps_the_last_checkpoint(data, tmp_path, monkeypatch):
    real = trainer_module.learning_rate

    def rate(config, step):
        return float("inf") if step == 6 else real(config, step)

    monkeypatch.setattr(trainer_module, "learning_rate", rate)
    with pytest.raises(TrainError, match=r"step 8: the loss is nan.* checkpoint is kept"):
        train(tiny_run(data), tmp_path / "run", quiet=True)
    newest = max((tmp_path / "run" / "checkpoints").glob("step-*"))
    state, arrays = read_checkpoint(newest, {})
    assert isinstance(state, State) and state.step == 4
    assert all(np.isfinite(values).all() for values in arrays.values())


def test_early_stop_keeps_the_best_weights(data, tmp_path):
    # So high a rate after the warm-up that validation soon gets worse.
    config = tiny_run(
        data, steps=200, lr=0.3, warmup=8, schedule="constant", validate_every=2, patience=2, sample_every=0
    )
    made = train(config, tmp_path / "run", quiet=True)
    points = read_points(tmp_path / "run" / "curves.jsonl")
    validations = [point["validation"] for point in points if "validation" in point]
    assert made.steps < 200 and min(validations) < validations[-1]
    best = read_checkpoint(tmp_path / "run" / "checkpoints" / "best.safetensors", {})[1]
    from glassloop.model.loader import ModelFiles

    kept = ModelFiles(made.folder).weights["layers.0.q.weight"].float32()
    assert np.array_equal(kept, best["weight:layers.0.q.weight"])


def test_token_files_are_trained_on_without_a_tokenizer(data, tmp_path, monkeypatch):
    from glassloop.text.tokenizer import Tokenizer
    from glassloop.train.new_tokenizer import train_characters
    from glassloop.train.prepare import prepare_tokens

    tokenizer = Tokenizer.from_json_folder(train_characters([data], tmp_path / "words"))
    files = {name: text.encode() for name, text in tokenizer.json_files().items()}
    prepare_tokens([data], tmp_path / "tokens", tokenizer, tokenizer_files=files)
    code = f"""
import sys
for name in ("tokenizers", "typer", "rich", "pydantic", "filelock", "jinja2", "transformers"):
    sys.modules[name] = None
from train.small import tiny_run
from glassloop.train.train import train
print(train(tiny_run({str(tmp_path / "tokens")!r}), {str(tmp_path / "run")!r}, quiet=True).sha256)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    # The same tokens give the same weights, whoever encoded them.
    assert done.stdout.strip() == train(tiny_run(data), tmp_path / "text", quiet=True).sha256
    assert (tmp_path / "run" / "model" / "tokenizer.json").exists()


def test_steps_are_deterministic_and_settings_of_torch_come_back(data, tmp_path):
    found = []

    def look(step: int) -> None:
        found.append((torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()))

    before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    train(tiny_run(data, steps=1, threads=2), tmp_path / "run", quiet=True, on_step=look)
    assert found == [(True, 2)]
    assert before == (torch.are_deterministic_algorithms_enabled(), torch.get_num_threads())


def test_a_run_that_never_began_does_not_block_its_folder(data, tmp_path):
    with pytest.raises(GlassloopError, match="there is no such file"):
        train(tiny_run("nothing.txt"), tmp_path / "run", quiet=True)
    assert train(tiny_run(data, steps=1), tmp_path / "run", quiet=True).steps == 1
