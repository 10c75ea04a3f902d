"""A changed model file works, or is refused in one line: at load, generation and chat."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from pathlib import Path
from random import Random

import pytest
from hostile import folders, gguf
from hostile.tiny import FIRST_SPECIAL, SPECIALS, TOKENS, tiny_gguf, write_folder
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop import LLM, Sampling
from glassloop.errors import GlassloopError, ModelError, TextError
from glassloop.model.loader import ModelFiles
from glassloop.text.tokenizer import Tokenizer

SEEDS = st.integers(0, 2**32)
GOOD = tiny_gguf(rich=True)
ROWS = len(TOKENS)  # of the embedding


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("mutated")


def tiny_folder(folder: Path) -> Path:
    return write_folder(folder, rich=True)


def use(path: Path) -> None:
    """What people do with a model: load it, generate, chat, decode."""
    llm = LLM(path, kv_memory="4MB", draft=False)
    try:
        sampling = Sampling(max_tokens=3, temperature=0, ignore_eos=True)
        llm.generate("hello <|im_end|> é", sampling)
        if llm.tokenizer.chat_template is not None:
            llm.chat([{"role": "user", "content": "x <|im_end|>"}], sampling)
        llm.tokenizer.decode(llm.tokenizer.encode("y"))
    finally:
        llm.engine.close()


def _use_or_refuse(path: Path) -> None:
    try:
        use(path)
    except GlassloopError as error:
        assert "\n" not in str(error) and str(error).isprintable() and len(str(error)) < 600


def test_the_good_files_are_good(place):
    (place / "good.gguf").write_bytes(GOOD.to_bytes())
    use(place / "good.gguf")
    use(tiny_folder(place / "good"))


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_gguf(place, seed):
    (place / "m.gguf").write_bytes(gguf.mutated(GOOD, Random(seed)))
    _use_or_refuse(place / "m.gguf")


@pytest.mark.parametrize(
    ("name", "examples"),
    [
        ("model.safetensors", 80),
        ("config.json", 60),
        ("tokenizer.json", 60),
        ("tokenizer_config.json", 60),
        ("generation_config.json", 60),
    ],
)
def test_folder(place, name, examples):
    @settings(max_examples=examples, deadline=None)
    @given(SEEDS)
    def check(seed):
        file = tiny_folder(place / name) / name
        file.write_bytes(folders.mutated_file(name, file.read_bytes(), Random(seed)))
        _use_or_refuse(file.parent)

    check()


# --- what a tokenizer has to do with its model ---


@pytest.mark.parametrize("more", [1, 62, 300_000])
def test_a_gguf_tokenizer_larger_than_the_embedding(tmp_path, more):
    tokens = GOOD["tokenizer.ggml.tokens"] + [f"t{i}" for i in range(more)]
    types = GOOD["tokenizer.ggml.token_type"] + [1] * more
    large = GOOD.with_metadata({"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types})
    path = tmp_path / "large.gguf"
    path.write_bytes(large.to_bytes())
    with pytest.raises(ModelError, match=f"the tokenizer has {ROWS + more} tokens; the model has {ROWS}"):
        use(path)


def _tokenizer_json(folder: Path, change) -> Path:
    state = json.loads((folder / "tokenizer.json").read_text())
    change(state)
    (folder / "tokenizer.json").write_text(json.dumps(state))
    return folder


def test_a_json_vocabulary_larger_than_the_embedding(tmp_path):
    folder = _tokenizer_json(tiny_folder(tmp_path), lambda state: state["model"]["vocab"].update(zz=ROWS))
    with pytest.raises(ModelError, match=f"the tokenizer has {ROWS + 1} tokens; the model has {ROWS}"):
        use(folder)


def test_added_tokens_that_the_model_has_no_row_for_are_left_out(tmp_path):
    """As in the text-only Gemma 3, whose tokenizer.json has a token for images."""

    def add(state):
        state["added_tokens"].append(state["added_tokens"][-1] | {"id": ROWS, "content": "<image>"})

    folder = _tokenizer_json(tiny_folder(tmp_path), add)
    use(folder)
    assert Tokenizer.from_json_folder(folder).vocab_size == ROWS + 1
    tokenizer = ModelFiles(folder).tokenizer()
    assert tokenizer.vocab_size == ROWS and tokenizer.special_ids == set(range(FIRST_SPECIAL, ROWS))
    assert max(tokenizer.encode("<image> <|im_end|>")) < ROWS
    assert tokenizer.decode(tokenizer.encode("<image>", add_special=False)) == "<image>"


def test_ids_outside_the_vocabulary(tmp_path):
    def point(state):
        state["post_processor"]["special_tokens"][SPECIALS[0]]["ids"] = [2**31]

    folder = _tokenizer_json(tiny_folder(tmp_path), point)
    with pytest.raises(TextError, match=f"post_processor adds the token id 2147483648; an id below {ROWS}"):
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
