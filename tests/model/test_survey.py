"""What `models check` and `models show` say of files that are sound but not supported: the thing by its name,
and what to do."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from hostile import gguf as raw_gguf
from hostile.tiny import tiny_gguf
from model.tiny import TINY, make

from glassloop import LLM, Sampling
from glassloop.errors import ModelError
from glassloop.model.cache import Branches
from glassloop.model.families import FAMILIES
from glassloop.model.loader import ModelFiles, describe, watch_loading
from glassloop.model.model_check import check_model
from glassloop.model.survey import survey
from glassloop.model.unsupported import GGUF_TYPES, family_list
from glassloop.ops import choose_ops
from glassloop.ops.native import library
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.quant import FORMAT_BY_GGUF_ID
from glassloop.ops.reference import ReferenceOps
from glassloop.ops.weight_memory import memory_line, weight_bytes

ROOT = Path(__file__).parents[2]


def _findings(path: Path) -> tuple[dict[str, str], str]:
    """What `check_model` finds before it raises, and what it raises."""
    found = {}
    with pytest.raises(ModelError) as caught:
        for finding in check_model(path):
            found[finding.what] = finding.found
    message = str(caught.value)
    assert "\n" not in message
    return found, message


def _tiny_gguf(path: Path, **metadata: object) -> Path:
    path.write_bytes(tiny_gguf().with_metadata(metadata).to_bytes())
    return path


def test_types_are_named_as_gguf_names_them():
    theirs = {int(kind): kind.name for kind in gguf.GGMLQuantizationType}
    assert {number: name for number, name in GGUF_TYPES.items() if number in theirs} == theirs
    assert GGUF_TYPES.keys() >= FORMAT_BY_GGUF_ID.keys()


@pytest.mark.parametrize("type_id", sorted(set(GGUF_TYPES) - set(FORMAT_BY_GGUF_ID)))
def test_a_type_that_is_not_read_is_named_with_what_to_get(tmp_path, type_id):
    file = tiny_gguf()
    first = file.tensors[0]
    changed = raw_gguf.Tensor(first.name, first.dims, type_id, first.data)
    path = tmp_path / "model.gguf"
    path.write_bytes(raw_gguf.GGUF(file.entries, (changed, *file.tensors[1:])).to_bytes())
    found, message = _findings(path)
    assert f"{GGUF_TYPES[type_id]} 1" in found["format"] and found["family"] == "Llama"
    assert f"{first.name} has type {GGUF_TYPES[type_id]}; types F32" in message
    assert "Q4_K_M" in message and "--upstream" in message
    facts = describe(path)
    assert facts["not_supported"] == message and facts["stored_types"][GGUF_TYPES[type_id]] == 1


def test_families_are_listed_once_everywhere(tmp_path):
    families = family_list()
    assert len(families.split(", ")) == len(FAMILIES) == len({family.title for family in FAMILIES})
    for page in ("README.md", "docs/models.md"):
        assert families in " ".join((ROOT / page).read_text().split()), page
    found, message = _findings(_tiny_gguf(tmp_path / "m.gguf", **{"general.architecture": "falcon"}))
    assert found["family"] == "'falcon'"
    assert f"general.architecture is 'falcon'; the families {families} are read" in message
    assert "--upstream" in message


def test_a_mixture_of_experts_is_called_so(tmp_path):
    _, message = _findings(
        _tiny_gguf(tmp_path / "m.gguf", **{"general.architecture": "qwen3", "qwen3.expert_count": 8})
    )
    assert "qwen3.expert_count is 8: mixtures of experts of this family are not read" in message
    assert "--upstream" in message
    make(next(tiny for tiny in TINY if tiny.name == "qwen3"), tmp_path / "hf")
    config = json.loads((tmp_path / "hf/config.json").read_text())
    (tmp_path / "hf/config.json").write_text(json.dumps({**config, "num_local_experts": 8}))
    _, message = _findings(tmp_path / "hf")
    assert "num_local_experts is 8: mixtures of experts of this family are not read" in message


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_a_folder_with_a_pickle_says_why_and_what_to_do(tmp_path, name):
    make(next(tiny for tiny in TINY if tiny.name == "qwen3"), tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / name)
    with pytest.raises(ModelError, match=r"is a pickle, which can run code .*save_pretrained"):
        ModelFiles(tmp_path)
    with pytest.raises(ModelError, match="is a pickle, which can run code"):
        ModelFiles(tmp_path / name)


def test_a_folder_with_a_gguf_file_names_it(tmp_path):
    make(next(tiny for tiny in TINY if tiny.name == "qwen3"), tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "model-q4.gguf")
    with pytest.raises(ModelError, match=r"but model-q4\.gguf: give the path of that file"):
        ModelFiles(tmp_path)


@pytest.mark.parametrize(
    ("start", "named"),
    [(b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"), (b"<!DOCTYPE html>", "an HTML page")],
)
def test_a_download_that_is_no_file_is_recognized(tmp_path, start, named):
    path = tmp_path / "m.gguf"
    path.write_bytes(start + bytes(100))
    with pytest.raises(ModelError, match=named):
        ModelFiles(path)


# The tensors of a layer that grow with a number, and the axis (the fastest is the first).
_GROWING = {
    "attention.head_count_kv": {"attn_k": 1, "attn_v": 1},
    "attention.head_count": {"attn_q": 1, "attn_output": 0},
    "feed_forward_length": {"ffn_gate": 1, "ffn_up": 1, "ffn_down": 0},
}


@pytest.mark.parametrize("key", _GROWING)
def test_layers_may_differ_where_a_file_lists_their_sizes(tmp_path, key):
    file = tiny_gguf()
    count = file["llama.block_count"]
    good = int(file[f"llama.{key}"])
    entries = tuple(entry for entry in file.entries if entry.key != f"llama.{key}")

    def with_values(values: list[int], tensors: tuple[raw_gguf.Tensor, ...] = file.tensors) -> Path:
        more = raw_gguf.metadata({f"llama.{key}": values})
        path = tmp_path / "layers.gguf"
        path.write_bytes(raw_gguf.GGUF((*entries, *more), tensors).to_bytes())
        return path

    same = ModelFiles(with_values([good] * count))
    assert same.config == ModelFiles(_tiny_gguf(tmp_path / "plain.gguf")).config
    with pytest.raises(ModelError, match=f"llama.{key} has {count + 1} values; one for each"):
        ModelFiles(with_values([good] * (count + 1)))
    last = [good] * (count - 1) + [2 * good]
    with pytest.raises(ModelError, match="has shape"):  # the tensors are still those of equal layers
        ModelFiles(with_values(last))
    path = with_values(last, tuple(_grown(tensor, count - 1, _GROWING[key]) for tensor in file.tensors))
    logits = [
        Branches(ModelFiles(path).transformer(ops), 8).forward([(0, 0, [1, 2, 3])])
        for ops in (NativeOps(), ReferenceOps())
    ]
    assert np.abs(logits[0] - logits[1]).max() < 0.01 * np.abs(logits[1]).max()
    shown = describe(path)
    assert [*map(type, (shown["heads"], shown["kv_heads"], shown["feed_forward_dim"]))].count(list) == 1
    llm = LLM(path, kv_memory="4MB")
    run = llm.generate("the sea", Sampling(temperature=0, max_tokens=4, ignore_eos=True))
    assert run.replay(llm).identical
    llm.close()


def _grown(tensor: raw_gguf.Tensor, layer: int, growing: dict[str, int]) -> raw_gguf.Tensor:
    """Returns a tensor with one of its sizes doubled, if it is one of those that grow in this layer."""
    for name, axis in growing.items():
        if tensor.name == f"blk.{layer}.{name}.weight":
            dims = tuple(2 * size if place == axis else size for place, size in enumerate(tensor.dims))
            return replace(tensor, dims=dims, data=tensor.data * 2)
    return tensor


def test_memory_is_what_the_op_sets_take(tmp_path):
    weights = ModelFiles(_tiny_gguf(tmp_path / "m.gguf")).weights
    numbers = sum(tensor.size for tensor in weights.values())
    assert weight_bytes(weights.values(), ReferenceOps().matrix_bytes) == 4 * numbers
    line = memory_line(weights.values())
    assert "native" in line and "torch" in line and "reference" in line
    if library.available():
        from glassloop.ops.native.packer import Packer, layout_of, packed_bytes

        packer, total = Packer(), 0
        for tensor in weights.values():
            if len(tensor.shape) == 2:
                total += packer.pack(tensor, layout_of(tensor.shape, tensor.format)).nbytes
            else:
                total += 4 * tensor.size
        packer.finish()
        assert weight_bytes(weights.values(), packed_bytes) == total


def test_loading_tells_how_far_it_is(tmp_path):
    steps = []
    files = ModelFiles(_tiny_gguf(tmp_path / "m.gguf"))
    with watch_loading(lambda done, total, name: steps.append((done, total))):
        files.transformer(choose_ops("reference"))
    total = sum(tensor.size for tensor in files.weights.values())
    assert steps[-1] == (total, total) and steps == sorted(steps) and len(steps) >= len(files.weights)
    count = len(steps)
    files.transformer(choose_ops("reference"))
    assert len(steps) == count


def test_a_survey_counts_the_types_of_safetensors(tmp_path):
    header = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    header["b"] = {"dtype": "I8", "shape": [8], "data_offsets": [8, 16]}
    raw = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(16))
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    stated = survey(tmp_path)
    assert stated.types == {"F32": 1, "I8": 1} and stated.family == "'mamba'" and stated.parameters == 10
