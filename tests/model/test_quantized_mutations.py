"""Damaged quantized safetensors and damaged GGUF parts: they work, or are refused in one line."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from random import Random

import pytest
from hostile import gguf
from hostile.quantized import SCHEMES, mutated, quantized_file
from hypothesis import given, settings
from hypothesis import strategies as st
from model.test_gguf_parts import _split

from glassloop.errors import GlassloopError
from glassloop.model.loader import ModelFiles
from glassloop.model.quantized import read_weights
from glassloop.model.survey import survey

SEEDS = st.integers(0, 2**32)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("mutated")


def _options(scheme: str, options: object) -> dict[str, object]:
    return {"torch_dtype": "bfloat16", "quantization" if scheme == "mlx" else "quantization_config": options}


def _read_all(folder: Path, config: dict[str, object]) -> None:
    for tensor in read_weights(folder, config).tensors.values():
        assert tensor.float32().shape == tensor.shape


def _refused_in_one_line(error: GlassloopError) -> None:
    assert "\n" not in str(error) and str(error).isprintable() and len(str(error)) < 700


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_good_files_are_good(place, scheme):
    (place / "model.safetensors").write_bytes(quantized_file(scheme))
    _read_all(place, _options(scheme, SCHEMES[scheme][1]))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_damaged_quantized_files(place, scheme):
    @settings(max_examples=60, deadline=None)
    @given(SEEDS)
    def check(seed: int) -> None:
        data, options = mutated(scheme, Random(seed))
        (place / "model.safetensors").write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                _read_all(place, _options(scheme, options))
            except GlassloopError as error:
                _refused_in_one_line(error)

    check()


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_damaged_parts(place, seed):
    rng = Random(seed)
    paths = _split(place, (0, 4) if rng.random() < 0.3 else (3, 7))
    victim = rng.choice(paths)
    change = rng.randrange(4)
    if change == 0:
        victim.write_bytes(rng.choice(paths).read_bytes())
    elif change == 1:
        victim.unlink()
    else:
        victim.write_bytes(gguf.raw.changed(victim.read_bytes(), rng, 600))
    try:
        files = ModelFiles(rng.choice([path for path in paths if path.exists()]))
        json.dumps(survey(files.path).types)
    except GlassloopError as error:
        _refused_in_one_line(error)
