"""Damaged and lying files: a ModelError in one line that names the file, in bounded time and memory."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model.tiny import TINY, make
from model.tiny_gguf import write_gguf

from glassloop.errors import ModelError
from glassloop.model.loader import ModelFiles
from glassloop.model.safetensors import read_file

_FUZZ = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _tiny(name: str):
    return next(tiny for tiny in TINY if tiny.name == name)


@pytest.fixture(scope="module")
def good_gguf(tmp_path_factory) -> bytes:
    folder = tmp_path_factory.mktemp("gguf")
    model = make(_tiny("llama-llama3"), folder / "hf")
    write_gguf(model, folder / "good.gguf", "llama")
    return (folder / "good.gguf").read_bytes()


@pytest.fixture(scope="module")
def good_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("folder")
    make(_tiny("gemma3"), folder)
    return folder


@pytest.fixture(scope="module", params=["gemma3", "qwen2-window", "smollm3", "gpt2"])
def any_folder(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    make(_tiny(request.param), folder)
    return folder


def _refused(path: Path) -> str:
    """Opening must fail with a ModelError in one line that names the file, and allocate little on the way."""
    tracemalloc.start()
    try:
        with pytest.raises(ModelError) as caught:
            ModelFiles(path)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert "\n" not in message and message.startswith(str(path)) and message.isprintable()
    return message


def _refused_or_fine(path: Path) -> None:
    """A random change may hit a byte that does not matter (a weight): fine. Anything else is a ModelError."""
    try:
        ModelFiles(path)
    except ModelError as error:
        assert "\n" not in str(error) and str(path) in str(error)


# --- GGUF ---


@_FUZZ
@given(cut=st.floats(0, 1, exclude_max=True))
def test_a_gguf_cut_off_anywhere_is_refused(good_gguf, tmp_path, cut):
    path = tmp_path / "cut.gguf"
    path.write_bytes(good_gguf[: int(len(good_gguf) * cut)])
    _refused(path)


def _header_size(good: bytes) -> int:
    """Everything before the first weight."""
    return good.index(b"blk.3.ffn_down.weight") + 64


@_FUZZ
@given(data=st.data())
def test_a_gguf_with_flipped_bytes_is_refused_or_harmless(good_gguf, tmp_path, data):
    raw = bytearray(good_gguf)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, _header_size(good_gguf)))
        raw[at] = data.draw(st.integers(0, 255))
    path = tmp_path / "flipped.gguf"
    path.write_bytes(raw)
    _refused_or_fine(path)


@_FUZZ
@given(data=st.data())
def test_a_gguf_with_absurd_numbers_is_refused_or_harmless(good_gguf, tmp_path, data):
    """Eight bytes of the header replaced by a huge or tiny number: counts, lengths, dims, offsets."""
    raw = bytearray(good_gguf)
    at = data.draw(st.integers(0, _header_size(good_gguf)))
    number = data.draw(st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1]))
    raw[at : at + 8] = struct.pack("<Q", number)
    path = tmp_path / "absurd.gguf"
    path.write_bytes(raw)
    _refused_or_fine(path)


@given(raw=st.binary(max_size=300))
@_FUZZ
def test_random_bytes_are_refused(tmp_path, raw):
    path = tmp_path / "random.gguf"
    path.write_bytes(raw)
    _refused(path)


def test_wrong_magic_and_version(good_gguf, tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGML" + good_gguf[4:])
    assert "magic" in _refused(path)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n")
    assert "a Git LFS pointer" in _refused(path)
    path.write_bytes(b"\n<!DOCTYPE html>\n<html><title>Sign in</title></html>")
    assert "an HTML page" in _refused(path)
    path.write_bytes(good_gguf[:4] + struct.pack(">I", 3) + good_gguf[8:])
    assert "version" in _refused(path)


def test_a_number_where_the_counts_stand(good_gguf, tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(good_gguf[:8] + struct.pack("<Q", 2**60) + good_gguf[16:])
    assert "tensor_count" in _refused(path)
    path.write_bytes(good_gguf[:16] + struct.pack("<Q", 2**60) + good_gguf[24:])
    assert "metadata_kv_count" in _refused(path)


def _write(path: Path, infos: list[tuple[str, list[int], int, int]], data: bytes) -> None:
    """A GGUF by hand: (name, dims with the fastest first, type, offset) of each tensor."""
    raw = b"GGUF" + struct.pack("<IQQ", 3, len(infos), 0)
    for name, dims, kind, offset in infos:
        raw += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(dims))
        raw += b"".join(struct.pack("<Q", dim) for dim in dims) + struct.pack("<IQ", kind, offset)
    raw += b"\0" * (-len(raw) % 32)
    path.write_bytes(raw + data)


@pytest.mark.parametrize(
    ("infos", "named"),
    [
        ([("a", [8], 0, 0), ("b", [8], 0, 0)], "b overlaps a"),
        ([("a", [8], 0, 0), ("a", [8], 0, 32)], "a appears twice"),
        ([("a", [8], 0, 96)], "a ends at byte"),
        ([("a", [2**40, 2**20], 0, 0)], "a ends at byte"),
        ([("a", [8], 0, 4)], "alignment"),
        ([("a", [8], 99, 0)], "a has type 99"),
        ([("a", [16], 2, 0)], "does not fit its type Q4_0"),
        ([("a", [0], 0, 0)], "shape (0,)"),
        ([("a", [1, 1, 1, 1, 8], 0, 0)], "5 dimensions"),
        ([("a\n\x1b[2J", [8], 99, 0)], "type 99"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path, infos, named):
    path = tmp_path / "bad.gguf"
    _write(path, infos, b"\0" * 64)
    assert named in _refused(path)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("general.architecture", "mamba", "general.architecture is 'mamba'"),
        ("llama.block_count", 3, "blk.3."),
        ("llama.block_count", 5, "blk.4.attn_norm.weight is missing"),
        ("llama.block_count", 2**31, "llama.block_count"),
        ("llama.embedding_length", 64, "shape"),
        ("llama.attention.head_count", 0, "llama.attention.head_count"),
        ("llama.attention.head_count", 5, "heads"),
        ("llama.attention.layer_norm_rms_epsilon", -1.0, "epsilon"),
        ("llama.attention.layer_norm_rms_epsilon", float("nan"), "epsilon"),
        ("llama.rope.dimension_count", 7, "rope"),
        ("llama.context_length", "long", "llama.context_length"),
    ],
)
def test_metadata_that_lies(tmp_path, key, value, named):
    model = make(_tiny("llama-llama3"), tmp_path / "hf")
    path = tmp_path / "lies.gguf"
    original = gguf.GGUFWriter.write_header_to_file

    def lie(writer):
        kinds = {
            int: gguf.GGUFValueType.UINT32,
            float: gguf.GGUFValueType.FLOAT32,
            str: gguf.GGUFValueType.STRING,
        }
        writer.kv_data[0][key] = gguf.gguf_writer.GGUFValue(value, kinds[type(value)])
        original(writer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "write_header_to_file", lie)
        write_gguf(model, path, "llama")
    assert named in _refused(path)


# --- safetensors and config.json ---


def _copied(folder: Path, to: Path) -> Path:
    to.mkdir(exist_ok=True)
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


@_FUZZ
@given(cut=st.floats(0, 1, exclude_max=True))
def test_safetensors_cut_off_anywhere_are_refused(good_folder, tmp_path, cut):
    raw = (good_folder / "model.safetensors").read_bytes()
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw[: int(len(raw) * cut)])
    with pytest.raises(ModelError) as caught:
        read_file(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@_FUZZ
@given(data=st.data())
def test_safetensors_with_flipped_bytes_are_refused_or_harmless(good_folder, tmp_path, data):
    raw = bytearray((good_folder / "model.safetensors").read_bytes())
    header = 8 + struct.unpack("<Q", raw[:8])[0]
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, header))] = data.draw(st.integers(0, 255))
    folder = _copied(good_folder, tmp_path / "copy")
    (folder / "model.safetensors").write_bytes(raw)
    _refused_or_fine(folder)


@pytest.mark.parametrize(
    ("header", "named"),
    [
        ({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 12]}}, "data_offsets"),
        ({"a": {"dtype": "F32", "shape": [4], "data_offsets": [32, 48]}}, "data_offsets"),
        ({"a": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}}, "shape"),
        ({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, "shape"),
        ({"a": {"dtype": "F32", "shape": [1] * 40, "data_offsets": [0, 4]}}, "shape"),
        ({"a": {"dtype": "F8", "shape": [4], "data_offsets": [0, 4]}}, "dtype 'F8'"),
        ({"a": {"dtype": ["F32"], "shape": [4], "data_offsets": [0, 4]}}, "dtype"),
        ({"a": 7}, "a is not an object"),
        (
            {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}
            | {"b": {"dtype": "F32", "shape": [4], "data_offsets": [8, 24]}},
            "overlaps",
        ),
    ],
)
def test_safetensors_headers_that_lie(tmp_path, header, named):
    raw = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + b"\0" * 40)
    with pytest.raises(ModelError, match=r"model\.safetensors") as caught:
        read_file(path)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "mamba"}, "model_type is 'mamba'"),
        ({"model_type": ["gemma3"]}, "model_type"),
        ({"num_hidden_layers": 6}, "layer_types"),
        ({"num_hidden_layers": 6, "layer_types": None}, "layers.6."),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_hidden_layers": "7"}, "num_hidden_layers is '7'"),
        ({"layer_types": None, "num_hidden_layers": 8}, "is missing"),
        ({"hidden_size": 64}, "shape"),
        ({"vocab_size": 10**12}, "vocab_size"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"num_key_value_heads": 4}, "heads"),
        ({"head_dim": -1}, "head_dim"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps"),
        ({"hidden_activation": "mish"}, "hidden_activation is 'mish'"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["linear_attention"] * 7}, "layer_types"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "rope_type is 'spiral'"),
        ({"rope_parameters": {"rope_type": "longrope", "long_factor": [1.0]}}, "long_factor"),
        ({"num_kv_shared_layers": 7}, "num_kv_shared_layers is 7; 0 to 6 is expected"),
        ({"per_layer_config": {"1": {"hidden_size": 3}}}, "hidden_size differs between layers"),
        ({"per_layer_config": {"1": []}}, "per_layer_config: 1 is []"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "factor"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings"),
    ],
)
def test_a_config_that_lies(good_folder, tmp_path, changes, named):
    folder = _copied(good_folder, tmp_path / "copy")
    values = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(values))
    assert named in _refused(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "nul", "[" * 100_000, '{"a": \ud800}'])
def test_a_config_that_is_not_json(good_folder, tmp_path, text):
    folder = _copied(good_folder, tmp_path / "copy")
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    assert "config.json" in _refused(folder)


_FIELDS = (
    *("hidden_size", "num_attention_heads", "head_dim", "rope_theta", "sliding_window", "layer_types"),
    *("rope_parameters", "num_hidden_layers", "query_pre_attn_scalar", "final_logit_softcapping"),
    *("num_kv_shared_layers", "attention_k_eq_v", "global_head_dim", "per_layer_config"),
    *("max_window_layers", "no_rope_layers", "sliding_window_pattern", "model_type", "rope_scaling"),
)


@given(
    values=st.dictionaries(
        st.sampled_from(_FIELDS),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("yarn"),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["rope_type", "factor", "full_attention", "type"]), inner)
            ),
            max_leaves=6,
        ),
        max_size=4,
    )
)
@_FUZZ
def test_any_config_json_is_read_or_refused(any_folder, tmp_path, values):
    folder = _copied(any_folder, tmp_path / "copy")
    original = json.loads((any_folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(original | values))
    _refused_or_fine(folder)


def test_an_index_that_points_out_of_its_folder(tmp_path):
    folder = tmp_path / "model"
    make(_tiny("llama"), folder, shard_size="50KB")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    first = next(iter(index["weight_map"]))
    for shard, named in [("../secret.safetensors", "same folder"), ("model-9.safetensors", "cannot be read")]:
        changed = {"weight_map": index["weight_map"] | {first: shard}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(changed))
        assert named in _refused(folder)
    changed = {"weight_map": index["weight_map"] | {"not.there": index["weight_map"][first]}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(changed))
    assert "not.there" in _refused(folder)


def test_pickles_are_never_opened(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(np.random.default_rng(0).bytes(100))
    assert "pickle" in _refused(path)


def test_a_folder_without_weights_or_config(tmp_path):
    assert "config.json" in _refused(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert "hidden_size" in _refused(tmp_path)
