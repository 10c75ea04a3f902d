"""Families whose options are drawn at random: the logits of `transformers`, whole, in chunks and beside other
branches, and on the native op set the same bits however the rows are cut."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from model.drawn import DRAWN, draw
from model.drawn_gguf import write_drawn
from model.test_families import _assert_close, _oracle, _prompt
from model.tiny import make

from glassloop.errors import ModelError
from glassloop.model.cache import Branches
from glassloop.model.loader import ModelFiles
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.reference import ReferenceOps

SEEDS = range(int(os.environ.get("GLASSLOOP_DRAWN", "2")))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", DRAWN)
def test_logits_equal_transformers(name, seed, tmp_path):
    theirs = make(draw(name, seed), tmp_path)
    files = ModelFiles(tmp_path)
    ours, ids = files.transformer(ReferenceOps()), _prompt(45)
    exact = _oracle(theirs, ids)
    _assert_close(Branches(ours, 64).forward([(0, 0, ids)], every_logit=True), exact)
    cache = Branches(ours, 64, branches=2)  # a cached prefix, other chunks, a neighbour
    pieces = [cache.forward([(0, 0, ids[:10])], every_logit=True)]
    work = [(1, 0, _prompt(7)), (0, 10, ids[10:33])]
    pieces.append(cache.forward(work, every_logit=True)[7:])
    pieces += [cache.forward([(0, at, [ids[at]])]) for at in range(33, len(ids))]
    _assert_close(np.concatenate(pieces), exact)

    native = files.transformer(NativeOps())
    whole = Branches(native, 64).forward([(0, 0, ids)], every_logit=True)
    assert np.abs(whole - exact).max() / np.abs(exact).max() < 5e-3
    cache = Branches(native, 64, branches=2)
    pieces = [cache.forward([(0, 0, ids[:1])])]
    pieces.append(cache.forward([(1, 0, _prompt(19)), (0, 1, ids[1:34])], every_logit=True)[19:])
    pieces += [cache.forward([(1, at, [5]), (0, at + 15, [ids[at + 15]])])[1:] for at in range(19, 30)]
    assert np.concatenate(pieces).tobytes() == whole.tobytes()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [name for name, family in DRAWN.items() if family.gguf])
def test_the_same_model_as_gguf(name, seed, tmp_path):
    tiny = draw(name, seed)
    rope = tiny.settings.get("rope_parameters")
    if isinstance(rope, dict):
        rope.get("full_attention", rope).pop("truncate", None)  # which GGUF cannot say
    theirs = make(tiny, tmp_path)
    write_drawn(theirs, tmp_path / "tiny.gguf", DRAWN[name].gguf)
    ours, ids = ModelFiles(tmp_path / "tiny.gguf").transformer(ReferenceOps()), _prompt(45)
    _assert_close(Branches(ours, 64).forward([(0, 0, ids)], every_logit=True), _oracle(theirs, ids))


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("granite", {"residual_multiplier": -1}, "residual_multiplier is -1; a positive number is expected"),
        ("granite", {"logits_scaling": "8"}, "logits_scaling is '8'; a positive number is expected"),
        (
            "ministral3",
            {"rope_parameters": {"llama_4_scaling_beta": 0.1}},
            "original_max_position_embeddings",
        ),
        ("gemma4", {"num_kv_shared_layers": 4}, "num_kv_shared_layers is 4: no layer before"),
        ("gemma4", {"attention_k_eq_v": "yes"}, "attention_k_eq_v is 'yes'"),
        (
            "gemma4",
            {"hidden_size_per_layer_input": 8},
            "hidden_size_per_layer_input is 8; only 0 is supported",
        ),
        ("gemma4", {"per_layer_config": {"1": {"head_dim": -4}}}, "head_dim is -4"),
        ("cohere2", {"layer_norm_eps": None, "logit_scale": 0}, "logit_scale is 0"),
        ("phi3", {"rope_parameters": {"rope_type": "longrope"}}, "long_factor must be a list of"),
        ("phi3", {"intermediate_size": 64}, "gate_up_proj.weight has"),
        ("starcoder2", {"use_bias": 1}, "use_bias is 1"),
    ],
)
def test_a_config_that_lies_is_refused_in_one_line(name, changes, named, tmp_path):
    make(draw(name, 0), tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(ModelError) as refused:
        ModelFiles(tmp_path)
    assert named in str(refused.value) and "\n" not in str(refused.value)
