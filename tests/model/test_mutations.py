"""A changed model file works, or is refused in one line: at load, generation and chat."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model.mutations import (
    Layout,
    mutated_gguf,
    mutated_json,
    mutated_safetensors,
    tiny_folder,
    tiny_gguf,
    use,
)

from glassloop.errors import GlassloopError, ModelError, TextError
from glassloop.model.loader import ModelFiles
from glassloop.text.tokenizer import Tokenizer

SEEDS = st.integers(0, 2**32)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("mutated")


def _use_or_refuse(path: Path) -> None:
    try:
        use(path)
    except GlassloopError as error:
        assert "\n" not in str(error) and str(error).isprintable() and len(str(error)) < 600


def test_the_good_files_are_good(place):
    (place / "good.gguf").write_bytes(tiny_gguf())
    assert Layout.of(tiny_gguf()).write() == tiny_gguf()
    use(place / "good.gguf")
    use(tiny_folder(place / "good"))


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_gguf(place, seed):
    (place / "m.gguf").write_bytes(mutated_gguf(tiny_gguf(), Random(seed)))
    _use_or_refuse(place / "m.gguf")


@settings(max_examples=80, deadline=None)
@given(SEEDS)
def test_safetensors(place, seed):
    folder = tiny_folder(place / "safetensors")
    file = folder / "model.safetensors"
    file.write_bytes(mutated_safetensors(file.read_bytes(), Random(seed)))
    _use_or_refuse(folder)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
)
def test_json(place, name):
    @settings(max_examples=60, deadline=None)
    @given(SEEDS)
    def check(seed):
        folder = tiny_folder(place / name)
        value = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(mutated_json(value, Random(seed))))
        _use_or_refuse(folder)

    check()


# --- what a tokenizer has to do with its model ---


def _with(layout: Layout, key: bytes, change) -> Layout:
    layout.metadata = [(k, kind, change(v) if k == key else v) for k, kind, v in layout.metadata]
    return layout


@pytest.mark.parametrize("more", [1, 62, 300_000])
def test_a_gguf_tokenizer_larger_than_the_embedding(tmp_path, more):
    layout = _with(
        Layout.of(tiny_gguf()),
        b"tokenizer.ggml.tokens",
        lambda v: (v[0], v[1] + [b"t%d" % i for i in range(more)]),
    )
    layout = _with(layout, b"tokenizer.ggml.token_type", lambda v: (v[0], v[1] + [1] * more))
    path = tmp_path / "large.gguf"
    path.write_bytes(layout.write())
    with pytest.raises(ModelError, match=f"the tokenizer has {260 + more} tokens; the model has 260"):
        use(path)


def _tokenizer_json(folder: Path, change) -> Path:
    state = json.loads((folder / "tokenizer.json").read_text())
    change(state)
    (folder / "tokenizer.json").write_text(json.dumps(state))
    return folder


def test_a_json_vocabulary_larger_than_the_embedding(tmp_path):
    folder = _tokenizer_json(tiny_folder(tmp_path), lambda state: state["model"]["vocab"].update(zz=260))
    with pytest.raises(ModelError, match="the tokenizer has 261 tokens; the model has 260"):
        use(folder)


def test_added_tokens_that_the_model_has_no_row_for_are_left_out(tmp_path):
    """As in the text-only Gemma 3, whose tokenizer.json has a token for images."""

    def add(state):
        state["added_tokens"].append(state["added_tokens"][-1] | {"id": 260, "content": "<image>"})

    folder = _tokenizer_json(tiny_folder(tmp_path), add)
    use(folder)
    assert Tokenizer.from_json_folder(folder).vocab_size == 261
    tokenizer = ModelFiles(folder).tokenizer()
    assert tokenizer.vocab_size == 260 and tokenizer.special_ids == {256, 257, 258, 259}
    assert max(tokenizer.encode("<image> <|im_end|>")) < 260
    assert tokenizer.decode(tokenizer.encode("<image>", add_special=False)) == "<image>"


def test_ids_outside_the_vocabulary(tmp_path):
    def point(state):
        state["post_processor"]["special_tokens"]["<|im_start|>"]["ids"] = [2**31]

    folder = _tokenizer_json(tiny_folder(tmp_path), point)
    with pytest.raises(TextError, match="post_processor adds the token id 2147483648; an id below 260"):
        use(folder)


# --- absurd numbers cost nothing ---


@pytest.mark.parametrize("positions", [2**20, 2**24, 2**30, 2**62])
def test_absurd_positions_allocate_nothing(tmp_path, positions):
    from model.tiny import TINY, make

    make(next(tiny for tiny in TINY if tiny.name == "xglm"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": positions}))
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=r"config\.json"):
            ModelFiles(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "file", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
)
def test_files_of_an_absurd_size_are_not_read(tmp_path, file):
    folder = tiny_folder(tmp_path)
    with (folder / file).open("r+b") as sparse:
        sparse.truncate(1 << 33)
    tracemalloc.start()
    try:
        with pytest.raises((ModelError, TextError), match=rf"{file}: is longer than \d+ bytes"):
            use(folder)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("depth", range(900, 1000, 7))
def test_values_nested_almost_too_deeply(tmp_path, depth):
    """What JSON can just read, an error must still be able to show."""
    folder = tiny_folder(tmp_path)
    deep = "[" * depth + "]" * depth
    for file, key in [("config.json", "hidden_size"), ("tokenizer_config.json", "eos_token")]:
        good = (folder / file).read_text()
        (folder / file).write_text(good.replace(f'"{key}": ', f'"{key}": {deep}, "x": ', 1))
        with pytest.raises(GlassloopError, match=f"{key} is|is not JSON"):
            use(folder)
        (folder / file).write_text(good)


def test_a_header_that_names_a_tensor_twice(tmp_path):
    folder = tiny_folder(tmp_path)
    raw = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    twice = raw[8 : 8 + size - 1] + b"," + raw[9 : 8 + size]
    (folder / "model.safetensors").write_bytes(len(twice).to_bytes(8, "little") + twice + raw[8 + size :])
    with pytest.raises(ModelError, match=r"header: is not JSON: a key appears twice"):
        use(folder)


def test_an_index_of_very_many_shards(tmp_path):
    folder = tiny_folder(tmp_path)
    shutil.move(folder / "model.safetensors", folder / "model-0.safetensors")
    index = {"weight_map": {f"t{i}": f"model-{i}.safetensors" for i in range(50_000)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="cannot be read"):
        use(folder)
