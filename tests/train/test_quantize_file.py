"""`models convert`: any model as GGUF with quantized weights, the error of each tensor, and nothing half
done."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hostile.tiny import write_folder, write_tiny
from model.test_gguf_families import ARCHITECTURES
from model.tiny import TINY, make

from glassloop.errors import GlassloopError
from glassloop.model.loader import ModelFiles
from glassloop.train.quantize_file import WEIGHTS, convert


@pytest.mark.parametrize("weights", WEIGHTS)
def test_what_is_written_is_what_is_reported(tmp_path, weights):
    model = write_tiny(tmp_path / "model.gguf")
    steps: list[tuple[int, int]] = []
    reports = convert(
        str(model), tmp_path / "out.gguf", weights, lambda done, total, _: steps.append((done, total))
    )
    before, after = ModelFiles(model), ModelFiles(tmp_path / "out.gguf")
    assert after.config == before.config
    assert after.tokenizer().encode("hello world") == before.tokenizer().encode("hello world")
    assert {report.name: report.format for report in reports} == {
        name: tensor.format.name for name, tensor in after.tensors.items()
    }
    assert steps[-1][0] == steps[-1][1] and [done for done, _ in steps] == sorted(done for done, _ in steps)
    by_name = {report.name: report for report in reports}
    for name, tensor in before.weights.items():
        values, found = tensor.float32(), after.weights[name].float32()
        norm = np.sqrt(np.square(values).mean())
        error = np.sqrt(np.square(found - values).mean()) / norm if norm else 0
        assert error <= max(0.2, 1.01 * by_name[after.weights[name].name].error), name
        if weights == "f32":
            np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("name", ["gpt2", "qwen2", "gemma3", "smollm3", "llama-llama3"])
def test_every_family_that_gguf_has_can_be_converted(tmp_path, name):
    if name not in ARCHITECTURES:
        pytest.skip("not in GGUF")
    make(next(tiny for tiny in TINY if tiny.name == name), tmp_path / "hf")
    reports = convert(str(tmp_path / "hf"), tmp_path / "out.gguf", "q8_0")
    before, after = ModelFiles(tmp_path / "hf"), ModelFiles(tmp_path / "out.gguf")
    assert before.weights.keys() == after.weights.keys()
    for weight, tensor in before.weights.items():
        np.testing.assert_allclose(
            after.weights[weight].float32(), tensor.float32(), atol=0.02 * np.abs(tensor.float32()).max()
        )
    assert max(report.error for report in reports) < 0.01


def test_a_folder_becomes_a_file_with_its_tokenizer(tmp_path):
    folder = write_folder(tmp_path / "folder")
    convert(str(folder), tmp_path / "out.gguf", "q8_0")
    text = "hello world, 123"
    assert ModelFiles(tmp_path / "out.gguf").tokenizer().encode(text) == ModelFiles(
        folder
    ).tokenizer().encode(text)


def test_nothing_is_overwritten_or_left_behind(tmp_path, monkeypatch):
    model = write_tiny(tmp_path / "model.gguf")
    before = model.read_bytes()
    with pytest.raises(GlassloopError, match="is there already"):
        convert(str(model), model, "q8_0")
    assert model.read_bytes() == before
    for out, weights, named in (
        (tmp_path / "out.bin", "q8_0", "ends in .gguf"),
        (tmp_path / "no/out.gguf", "q8_0", "does not exist"),
        (tmp_path / "out.gguf", "q3", "weights is 'q3'; one of q8_0"),
    ):
        with pytest.raises(GlassloopError, match=named):
            convert(str(model), out, weights)
    wrong = iter(range(10**6))
    monkeypatch.setattr("glassloop.train.quantize_file.zlib.crc32", lambda data: next(wrong))
    with pytest.raises(GlassloopError, match="is not what was written"):
        convert(str(model), tmp_path / "out.gguf", "q8_0")
    assert not (tmp_path / "out.gguf").exists()


def test_the_command_prints_the_error_of_each_matrix(tmp_path):
    model, out = write_tiny(tmp_path / "model.gguf"), tmp_path / "out.gguf"
    command = [
        sys.executable,
        "-m",
        "glassloop",
        "models",
        "convert",
        str(model),
        str(out),
        "--weights",
        "q8_0",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.splitlines()[0].split() == ["matrix", "format", "error", "largest", "size"]
    assert "read back" in done.stdout.splitlines()[-1]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "is there already" in done.stderr
    out.unlink()
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120)
    printed = json.loads(done.stdout)
    assert Path(printed["path"]) == out and all(0 <= each["error"] < 0.01 for each in printed["tensors"])
