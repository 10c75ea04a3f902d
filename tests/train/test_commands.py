"""The commands of `glassloop train`, their config files and their errors."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from train.small import text_file

from glassloop.cli import main as cli
from glassloop.train import config as config_module
from glassloop.train.config import (
    CPU_TORCH,
    TrainConfig,
    TrainError,
    config_text,
    make_config,
    need_torch,
    read_config,
)
from glassloop.train.optimizer import learning_rate
from glassloop.train.presets import PRESETS, fitted


def _run(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    """Runs `glassloop` in this process, since importing torch takes seconds."""
    monkeypatch.setattr(sys, "argv", ["glassloop", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
        raise SystemExit(0)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_a_run_from_a_preset_a_file_and_flags(tmp_path, monkeypatch, capsys):
    """Flags come before the file, the file before the preset. The smallest preset learns something."""
    file = tmp_path / "run.toml"
    file.write_text(f'preset = "characters"\ndata = ["{text_file(tmp_path)}"]\nsteps = 9\nthreads = 1\n')
    flags = ("--steps", "40", "--warmup", "5", "--sample-tokens", "40", "--quiet", "--json")
    code, out, err = _run(
        monkeypatch, capsys, "train", "run", str(tmp_path / "run"), "--config", str(file), *flags
    )
    assert code == 0, err
    result = json.loads(out)
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert (config["steps"], config["layers"], config["threads"]) == (40, 4, 1)
    assert result["steps"] == 40 and result["validation"] < 1.7  # from 3.4: the text repeats itself
    code, out, _ = _run(monkeypatch, capsys, "train", "resume", str(tmp_path / "run"), "--json")
    assert code == 0 and json.loads(out) == result

    from glassloop import LLM

    text = LLM(tmp_path / "run" / "model").generate("A cat sees the ", temperature=0, max_tokens=6).text
    assert text.strip().isalpha() or " " in text  # letters of words, not noise

    export = tmp_path / "small.gguf"
    code, out, _ = _run(
        monkeypatch, capsys, "train", "export", result["folder"], str(export), "--format", "q8"
    )
    assert code == 0 and out.strip() == str(export)
    assert export.stat().st_size < 0.5 * (tmp_path / "run" / "model" / "model.safetensors").stat().st_size


def test_tokenizer_and_token_files(tmp_path, monkeypatch, capsys):
    data = text_file(tmp_path)
    assert (
        _run(
            monkeypatch,
            capsys,
            "train",
            "tokenizer",
            str(tmp_path / "bpe"),
            "--data",
            data,
            "--vocab-size",
            "300",
        )[0]
        == 0
    )
    code, out, _ = _run(
        monkeypatch, capsys,
        "train", "prepare", str(tmp_path / "tokens"), "--data", data, "--tokenizer", str(tmp_path / "bpe"),
    )  # fmt: skip
    assert code == 0 and "1 documents" in out
    manifest = json.loads((tmp_path / "tokens" / "manifest.json").read_text())
    assert manifest["vocab_size"] == 300 and (tmp_path / "tokens" / "tokenizer" / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "OUT"), "data is missing"),
        (("run", "OUT", "--data", "nothing.txt"), "nothing.txt: there is no such file or folder"),
        (("run", "OUT", "--data", "TEXT", "--lr", "nan"), "lr is nan"),
        (("run", "OUT", "--data", "TEXT", "--heads", "3"), "heads is 3"),
        (("run", "OUT", "--data", "TEXT", "--schedule", "sine"), "schedule is 'sine'; one of cosine"),
        (("run", "OUT", "--data", "TEXT", "--lora-rank", "4"), "lora_rank needs a model"),
        (("run", "OUT", "--data", "TEXT", "--device", "cuda"), "device is 'cuda', but torch finds no GPU"),
        (("run", "OUT", "--data", "TEXT", "--sample-prompt", "€"), "no token for the byte 0xE2"),
        (("resume", "OUT"), "has no config.toml"),
        (("export", "OUT", "x.gguf"), "OUT"),
        (("prepare", "OUT", "--data", "TEXT", "--tokenizer", "TEXT"), "text.txt"),
    ],
)
def test_errors_are_one_line_that_names_the_field(arguments, message, tmp_path, monkeypatch, capsys):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    names = {"OUT": str(tmp_path / "OUT"), "TEXT": text_file(tmp_path)}
    given_ = [names.get(each, each) for each in arguments]
    if arguments[0] == "run":
        given_ += ["--tokenizer", "characters", "--threads", "1", "--quiet"]
    code, _, err = _run(monkeypatch, capsys, "train", *given_)
    assert code == 2 and message in err
    assert err.count("\n") == 1 and err.startswith("glassloop: ")


def test_a_config_file_with_an_unknown_or_wrong_setting_is_refused(tmp_path):
    file = tmp_path / "a.toml"
    for text, message in (
        ("stepz = 3", "there is no setting 'stepz'"),
        ('steps = "3"', "steps is '3'; a whole number is expected"),
        ("steps = 3.5", "steps is 3.5; a whole number"),
        ("tied = 1", "tied is 1; true or false"),
        ("data = [3]", "data is 3; a text"),
        ("steps = ", "is not TOML"),
    ):
        file.write_text(text)
        with pytest.raises(TrainError, match=message):
            make_config(str(file), read_config(file))


@settings(deadline=None)
@given(prompt=st.text(), data=st.lists(st.text(), max_size=3), seed=st.integers(0, 2**63 - 1))
def test_config_files_keep_every_value(prompt, data, seed):
    config = TrainConfig(sample_prompt=prompt, data=tuple(data), seed=seed, lr=3e-4)
    assert make_config("", tomllib.loads(config_text(config))) == config


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid(name):
    settings = PRESETS[name][1]
    assert make_config(name, settings, {"model": "x"} if "lora_rank" in settings else {})


def test_learning_rate_rises_then_falls():
    config = TrainConfig(steps=100, warmup=10, lr=1.0, final_lr=0.1)
    rates = [learning_rate(config, step) for step in range(100)]
    assert rates[10] == max(rates) == 1.0 and abs(rates[-1] - 0.1) < 1e-12
    assert rates[:11] == sorted(rates[:11]) and rates[10:] == sorted(rates[10:], reverse=True)
    half = learning_rate(TrainConfig(steps=101, warmup=0, lr=1.0, final_lr=0.0, schedule="linear"), 50)
    assert abs(half - 0.5) < 1e-12
    assert learning_rate(TrainConfig(steps=9, warmup=3, lr=2.0, schedule="constant"), 8) == 2.0


def test_parsing_arguments_imports_neither_torch_nor_numpy():
    code = (
        "import sys\nfrom glassloop.train.commands import parser\n"
        "parser().parse_args(['run', 'x', '--steps', '3'])\nprint(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "numpy", "tokenizers", "typer"} & set(loaded.split())


def test_pretrain_leaves_a_model_in_its_folder_and_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    out = str(tmp_path / "run")
    flags = ("--data", text_file(tmp_path), "--out", out, "--preset", "tiny", "--threads", "1", "--json")
    sizes = (
        "--steps",
        "3",
        "--layers",
        "1",
        "--dim",
        "16",
        "--heads",
        "1",
        "--sample-tokens",
        "2",
        "--quiet",
    )
    code, printed, err = _run(monkeypatch, capsys, "train", "pretrain", *flags, *sizes)
    assert code == 0, err
    first = json.loads(printed)
    assert first["folder"] == out and first["steps"] == 3
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "run" / name).stat().st_size

    from glassloop import LLM

    assert LLM(tmp_path / "run").config.dim == 16
    code, printed, _ = _run(monkeypatch, capsys, "train", "pretrain", *flags, *sizes)
    assert code == 0 and json.loads(printed) == first  # finished: nothing to do
    code, _, err = _run(monkeypatch, capsys, "train", "pretrain", *flags, *sizes, "--steps", "4")
    assert code == 2 and f"steps is 4, but the run in {out} has 3; give another folder" in err

    distil = ("--data", text_file(tmp_path), "--out", str(tmp_path / "student"), "--teacher", out, "--quiet")
    code, _, err = _run(
        monkeypatch, capsys, "train", "distil", *distil, *sizes, "--length", "64", "--batch", "2", "--json"
    )
    assert code == 0, err
    assert (tmp_path / "student" / "model.safetensors").exists()


def test_distillation_without_a_teacher_names_the_flag(tmp_path, monkeypatch, capsys):
    code, _, err = _run(
        monkeypatch, capsys, "train", "distil", "--out", str(tmp_path / "run"), "--data", text_file(tmp_path)
    )
    assert code == 2 and "teacher is missing; distil needs a model (--teacher NAME)" in err


def test_without_torch_and_a_gpu_the_message_has_the_command_for_the_cpu_build(monkeypatch):
    monkeypatch.setattr(config_module, "find_spec", lambda name: None)
    monkeypatch.setattr(config_module.sys, "platform", "linux")
    for gpu, command in ((None, CPU_TORCH), ("/usr/bin/nvidia-smi", "pip install torch")):
        monkeypatch.setattr(config_module.shutil, "which", lambda name, gpu=gpu: gpu)
        with pytest.raises(TrainError, match="training needs torch") as missing:
            need_torch()
        assert str(missing.value).endswith(command)


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(1, 1 << 22),
    suffix=st.sampled_from((".txt", ".jsonl", ".txt.gz")),
    device=st.sampled_from(("cpu", "cuda")),
    given_settings=st.fixed_dictionaries(
        {}, optional={"length": st.integers(2, 4096), "batch": st.integers(1, 64), "steps": st.integers(1, 9)}
    ),
)
def test_a_fitted_preset_is_valid_and_small_for_small_data(size, suffix, device, given_settings):
    """No step reads small data more than once, unless that is asked for; what is given stays."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"mine{suffix}"
        with file.open("wb") as opened:
            opened.truncate(size)
        for name in ("lora", "fine-tune"):
            chosen = fitted(PRESETS[name][1], given_settings, [str(file)], device)
            config = make_config(name, {"model": "x"}, chosen, given_settings)
            assert config.packing == ("whole" if suffix == ".jsonl" else "stream")
            assert all(getattr(config, key) == value for key, value in given_settings.items())
            tokens = size * (3 if suffix.endswith(".gz") else 1) // 4
            if not given_settings:
                most = 512 if device == "cpu" else 4096
                assert config.tokens_per_step <= max(config.length, min(most, tokens))
                assert config.steps <= 500 and config.warmup < config.steps
