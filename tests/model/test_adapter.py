"""Adapters in one file of 8 bits: what is written is read, close to what was meant, and damaged files are
refused in words. PEFT's layout is tested in tests/train/test_lora.py."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from engine.small import model
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop.errors import GlassloopError, ModelError
from glassloop.model.adapter import read_adapter
from glassloop.train.adapter_file import write_adapter_file

CONFIG = model().config
STEMS = [
    name.removesuffix(".weight") for name in CONFIG.shapes() if name.endswith((".q.weight", "down.weight"))
]


def _random(rank: int, seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(seed)
    made = {}
    for stem in STEMS:
        out, into = CONFIG.shapes()[f"{stem}.weight"]
        sizes = 10.0 ** random.uniform(-4, 0, (rank, 1))
        down = random.normal(size=(rank, into)) * sizes
        made[stem] = down.astype(np.float32), random.normal(size=(out, rank)).astype(np.float32) * 0.03
    return made


def _write(path, rank=8, **settings):
    vector = np.arange(CONFIG.dim, dtype=np.float32)
    options = {
        "name": "holes",
        "embedding": vector,
        "mask_token": 5,
        "metadata": {"data": "books"},
    } | settings
    return write_adapter_file(path, _random(rank), 0.5, **options)


@pytest.mark.parametrize("rank", [1, 8, 32])
def test_what_is_written_is_read(tmp_path, rank):
    sha256 = _write(tmp_path / "holes.safetensors", rank)
    adapter = read_adapter(tmp_path / "holes.safetensors", CONFIG)
    assert (adapter.name, adapter.rank, adapter.scale, adapter.mask_token) == ("holes", rank, 0.5, 5)
    assert adapter.sha256 == sha256 and adapter.metadata["data"] == "books"
    assert adapter.embedding is not None and adapter.embedding.tolist() == list(range(CONFIG.dim))
    assert list(adapter.matrices) == STEMS
    for stem, (down, up) in _random(rank).items():
        wanted = 0.5 * up @ down
        error = np.abs(adapter.delta(stem) - wanted).max()
        assert error <= 0.03 * np.abs(wanted).max()
        read_down, read_up = adapter.matrices[stem]
        assert read_down.shape == down.shape and read_up.shape == up.shape
        assert read_down.format.name == ("Q8_0" if down.shape[1] % 32 == 0 else "F32")
        assert read_up.format.name == ("Q8_0" if rank % 32 == 0 else "F32")


def test_zeros_stay_zeros(tmp_path):
    down, up = next(iter(_random(4).values()))
    write_adapter_file(tmp_path / "a.safetensors", {STEMS[0]: (down, up * 0)}, 1.0, name="a")
    adapter = read_adapter(tmp_path / "a.safetensors", CONFIG, "mine")
    assert not adapter.delta(STEMS[0]).any()
    assert adapter.name == "mine" and adapter.embedding is None and adapter.mask_token is None


def _changed(path, metadata=None, header=None):
    """Writes the file again with changes to its JSON."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    values = json.loads(raw[8 : 8 + size])
    described = values["__metadata__"]
    adapter = json.loads(described["adapter"])
    described["adapter"] = json.dumps(adapter | (metadata or {}))
    described["version"] = (metadata or {}).get("version", described["version"])
    for name, entry in (header or {}).items():
        if entry is None:
            del values[name]
        else:
            values[name] = values.get(name, {}) | entry
    text = json.dumps(values).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size :])


BAD = {
    "rank": ({"rank": 7}, {}, r"is I8|is F16"),
    "no rank": ({"rank": None}, {}, "rank is missing"),
    "scale": ({"scale": float("nan")}, {}, "scale is nan"),
    "mask token": ({"mask_token": CONFIG.vocab_size}, {}, "mask_token is"),
    "mask text": ({"mask_token": "5"}, {}, "mask_token is"),
    "name": ({"name": 3}, {}, "name is 3; a text"),
    "version": ({"version": "2"}, {}, "version '2'"),
    "missing": ({}, {f"{STEMS[0]}.up": None}, "up is missing"),
    "no place": ({}, {f"{STEMS[0]}.down": None}, "has no place"),
    "type": ({}, {f"{STEMS[0]}.down": {"dtype": "U8"}}, "I8 .* is expected"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_in_words(tmp_path, case):
    path = tmp_path / "holes.safetensors"
    _write(path)
    metadata, header, words = BAD[case]
    _changed(path, metadata, header)
    with pytest.raises(ModelError, match=words):
        read_adapter(path, CONFIG)


def test_other_files_are_refused_in_words(tmp_path):
    with pytest.raises(ModelError, match="cannot be read"):
        read_adapter(tmp_path / "none", CONFIG)
    with pytest.raises(ModelError, match="adapter_config"):
        read_adapter(tmp_path, CONFIG)
    path = tmp_path / "holes.safetensors"
    _write(path, embedding=np.full(CONFIG.dim, np.inf, np.float32))
    with pytest.raises(ModelError, match="embedding has values that are not finite"):
        read_adapter(path, CONFIG)
    _write(path, embedding=np.zeros(CONFIG.dim + 1, np.float32))
    with pytest.raises(ModelError, match="embedding is F32"):
        read_adapter(path, CONFIG)
    with pytest.raises(GlassloopError, match="at least one"):
        write_adapter_file(path, {}, 1.0, name="a")
    two = dict(zip(STEMS, (next(iter(_random(rank).values())) for rank in (2, 3)), strict=False))
    with pytest.raises(GlassloopError, match="single rank"):
        write_adapter_file(path, two, 1.0, name="a")


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_damaged_bytes_never_end_in_another_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damaged") / "holes.safetensors"
    _write(path)
    raw = bytearray(path.read_bytes())
    size = struct.unpack("<Q", raw[:8])[0]
    at = data.draw(st.integers(0, size + 16))
    raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    path.write_bytes(raw[: data.draw(st.sampled_from([len(raw), len(raw) - 1, at + 1]))])
    try:
        read_adapter(path, CONFIG)
    except ModelError as error:
        assert str(path) in str(error)
