"""Experts: routes against a plain loop, weights that nobody chose, files that lie, and MXFP4 stacks."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model.test_bad_files import _refused
from model.test_families import _assert_close, _oracle, _prompt
from model.tiny import TINY, make
from model.tiny_gguf import write_gguf
from safetensors.torch import load_file, save_file

from glassloop.model.cache import Branches
from glassloop.model.lens import Lens
from glassloop.model.loader import ModelFiles
from glassloop.ops.expert_choice import choose_experts
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.quant import FORMATS
from glassloop.ops.reference import ReferenceOps
from glassloop.ops.routing import Routing
from glassloop.train.expert_ops import choose_experts as choose_with_gradients
from glassloop.train.network import Network


def _tiny(name: str):
    return next(tiny for tiny in TINY if tiny.name == name)


# ── the choice ─────────────────────────────────────────────────────────────────────────────────────────────


def _plain_loop(
    logits: list[float], routing: Routing, bias: list[float] | None
) -> tuple[list[int], list[float]]:
    """Softmax and sigmoid routers, expert by expert."""
    if routing.scores == "sigmoid":
        scores = [1 / (1 + math.exp(-x)) for x in logits]
    else:
        total = sum(math.exp(x) for x in logits)
        scores = [math.exp(x) / total for x in logits]
    wanted = [score + (bias[e] if bias else 0) for e, score in enumerate(scores)]
    size = routing.experts // routing.groups
    ranked = sorted(
        range(routing.groups),
        key=lambda g: (-sum(sorted(wanted[g * size : (g + 1) * size], reverse=True)[:2]), g),
    )
    allowed = {e for g in ranked[: routing.chosen_groups] for e in range(g * size, (g + 1) * size)}
    chosen = sorted(sorted(allowed, key=lambda e: (-wanted[e], e))[: routing.chosen])
    weights = [scores[e] for e in chosen]
    if routing.normalized:
        weights = [weight / (sum(weights) + routing.epsilon) for weight in weights]
    return chosen, [weight * routing.factor for weight in weights]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_routes_are_those_of_a_plain_loop(data):
    groups = data.draw(st.integers(1, 4))
    size = data.draw(st.integers(1, 5))
    experts, kept = groups * size, data.draw(st.integers(1, groups))
    routing = Routing(
        experts,
        data.draw(st.integers(1, kept * size)),
        data.draw(st.sampled_from(["softmax", "sigmoid"])),
        data.draw(st.booleans()),
        data.draw(st.sampled_from([0.0, 1e-20, 1e-6])),
        data.draw(st.sampled_from([1.0, 2.5])),
        groups,
        kept,
    )
    routing.check()
    # Few values, so that there are ties.
    values = st.sampled_from([-4.0, -0.5, 0.0, 0.25, 3.0])
    rows = data.draw(st.lists(st.lists(values, min_size=experts, max_size=experts), min_size=1, max_size=4))
    biases = st.lists(st.sampled_from([0.0, 0.5, -0.5]), min_size=experts, max_size=experts)
    bias = data.draw(st.none() | biases)
    given_bias = None if bias is None else np.array(bias, np.float32)
    logits = np.array(rows, np.float32)
    routes = choose_experts(logits, routing, given_bias)
    for row, route in zip(rows, routes, strict=True):
        numbers, weights = _plain_loop([float(x) for x in row], routing, bias)
        assert route[: routing.chosen].tolist() == numbers
        np.testing.assert_allclose(route[routing.chosen :], weights, rtol=1e-5)
    trained = choose_with_gradients(
        torch.from_numpy(logits), routing, None if given_bias is None else torch.from_numpy(given_bias), None
    )
    np.testing.assert_allclose(trained.numpy(), routes, rtol=1e-5)


@pytest.mark.parametrize("ops", [ReferenceOps, NativeOps])
def test_weights_of_experts_that_nobody_chose_are_not_touched(ops, tmp_path):
    """Expert 2 of each layer is NaN, and is never chosen."""
    make(_tiny("minimax-m2"), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in tensors:
        if name.endswith("e_score_correction_bias"):
            tensors[name][2] = -100.0
    save_file(tensors, tmp_path / "model.safetensors")
    work = [(0, 0, _prompt(33))]
    plain = Branches(ModelFiles(tmp_path).transformer(ops()), 64).forward(work, every_logit=True)
    for name in tensors:
        if ".experts.2." in name:
            tensors[name][:] = torch.nan
    save_file(tensors, tmp_path / "model.safetensors")
    spoiled = Branches(ModelFiles(tmp_path).transformer(ops()), 64).forward(work, every_logit=True)
    assert np.isfinite(plain).all() and plain.tobytes() == spoiled.tobytes()


def test_a_network_for_training_has_the_same_logits_and_its_router_learns(tmp_path):
    theirs = make(_tiny("qwen2moe"), tmp_path)
    files = ModelFiles(tmp_path)
    network = Network(files.config, files.weights)
    ids = _prompt(20)
    from glassloop.train.gradient_ops import SequenceBatch

    batch = SequenceBatch(torch.tensor(ids), torch.arange(20), 1, 20)
    _assert_close(network.logits(batch).detach().numpy(), _oracle(theirs, ids))
    network.loss(batch, torch.tensor(ids)).backward()
    gradient = network.parameters["layers.1.router.weight"].grad
    assert gradient is not None and gradient.abs().max() > 0


@pytest.mark.parametrize("ops", [ReferenceOps, NativeOps])
def test_the_lens_shows_the_experts_that_transformers_takes(ops, tmp_path):
    theirs = make(_tiny("qwen2moe"), tmp_path)
    ids, found = _prompt(20), []
    for layer in theirs.model.layers:
        layer.mlp.gate.register_forward_hook(lambda module, _, made: found.append(made[1:]))
    _oracle(theirs, ids)
    transformer = ModelFiles(tmp_path).transformer(ops())
    lens, cache = Lens(transformer), Branches(transformer, 64)
    routes = lens.experts(cache.batch([(0, 0, ids)]), cache.pages)
    assert lens.routed_layers == [0, 1, 2, 3] == [*routes]
    for (weights, numbers), route in zip(found, routes.values(), strict=True):
        ranked = sorted(zip(numbers[-1].tolist(), weights[-1].tolist(), strict=True))
        assert route[:2].tolist() == [number for number, _ in ranked]
        np.testing.assert_allclose(route[2:], [weight for _, weight in ranked], rtol=1e-3)


# ── files ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("moe")
    make(_tiny("glm4moe"), path)
    return path


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"n_routed_experts": 7}, "groups do not divide 7 experts"),
        ({"n_routed_experts": 12}, "has shape (8, 48)"),
        ({"n_routed_experts": 4, "n_group": 1, "topk_group": 1}, "shape"),
        ({"n_routed_experts": 10**9}, "experts is 1000000000"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok"),
        ({"num_experts_per_tok": 9}, "takes 9 experts"),
        ({"num_experts_per_tok": 5}, "2 groups have fewer than 5 experts"),
        ({"topk_group": 5}, "5 of 4 groups"),
        ({"moe_intermediate_size": 41}, "shape"),
        ({"moe_intermediate_size": "wide"}, "moe_intermediate_size"),
        ({"n_shared_experts": 3}, "shape"),
        ({"first_k_dense_replace": 2}, "is missing"),
        ({"first_k_dense_replace": -1}, "first_k_dense_replace"),
        ({"routed_scaling_factor": float("nan")}, "routed_scaling_factor"),
        ({"norm_topk_prob": "yes"}, "norm_topk_prob"),
    ],
)
def test_a_config_that_lies_about_experts(folder, tmp_path, changes, named):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    values = json.loads((tmp_path / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert named in _refused(tmp_path)


@pytest.mark.parametrize(
    ("name", "replaced", "named"),
    [
        ("blk.1.ffn_gate_inp.weight", None, "blk.1.ffn_gate_inp.weight is missing"),
        ("blk.1.ffn_up_exps.weight", None, "blk.1.ffn_up_exps.weight is missing"),
        ("blk.1.ffn_up_exps.weight", (7, 40, 48), "one of 3 axes, the first of 6 experts"),
        ("blk.1.ffn_down_exps.weight", (48, 40), "one of 3 axes"),
        ("blk.1.ffn_down_exps.weight", (6, 48, 39), "shape (48, 39)"),
        ("blk.1.ffn_gate_inp.weight", (5, 48), "shape (5, 48)"),
    ],
)
def test_a_gguf_that_lies_about_experts(tmp_path, name, replaced, named):
    import gguf

    theirs = make(_tiny("qwen3moe"), tmp_path / "hf")
    add = gguf.GGUFWriter.add_tensor

    def lie(writer, tensor_name, values, *rest, **more):
        if tensor_name == name:
            if replaced is None:
                return
            values = np.zeros(replaced, np.float32)
        add(writer, tensor_name, values, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "add_tensor", lie)
        write_gguf(theirs, tmp_path / "lies.gguf", "qwen3moe")
    assert named in _refused(tmp_path / "lies.gguf")


def test_layers_that_predict_more_tokens_are_left_out(folder, tmp_path):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.4.eh_proj.weight"] = torch.zeros(48, 96)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    save_file(tensors, tmp_path / "model.safetensors")
    assert len(ModelFiles(tmp_path).config.layers) == 4
    tensors["model.layers.3.eh_proj.weight"] = torch.zeros(48, 96)
    save_file(tensors, tmp_path / "model.safetensors")
    assert "model.layers.3.eh_proj.weight has no place" in _refused(tmp_path)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q6_K", "MXFP4"])
def test_stacks_of_experts_in_number_formats(kind, tmp_path):
    """The native op set packs each expert of a stack as the reference reads it."""
    import gguf
    from ops.random_models import random_tensor

    sizes = {"hidden_size": 256, "moe_intermediate_size": 256, "num_hidden_layers": 2}
    tiny = _tiny("qwen3moe")
    theirs = make(type(tiny)(**vars(tiny) | {"settings": tiny.settings | sizes}), tmp_path / "hf")
    add, rng, format = gguf.GGUFWriter.add_tensor, np.random.default_rng(1), FORMATS[kind]

    def quantized(writer, name, values, *rest, **more):
        if name.endswith("_exps.weight"):
            experts, out, into = values.shape
            values = random_tensor(rng, name, (experts * out, into), format).data.reshape(experts, out, -1)
            more = {"raw_dtype": gguf.GGMLQuantizationType[kind]}
        add(writer, name, values, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "add_tensor", quantized)
        write_gguf(theirs, tmp_path / "tiny.gguf", "qwen3moe")
    files, work = ModelFiles(tmp_path / "tiny.gguf"), [(0, 0, _prompt(20))]
    assert files.weights["layers.0.experts.3.down.weight"].format.name == kind
    native, reference = (
        Branches(files.transformer(ops), 64).forward(work, every_logit=True)
        for ops in (NativeOps(), ReferenceOps())
    )
    # Inputs of products are rounded to 8 bits, so a few rows may take other experts.
    error = np.abs(native - reference).max(axis=1) / np.abs(reference).max(axis=1)
    assert np.median(error) < 0.05


@pytest.mark.parametrize("largest", [126, 255])
def test_mxfp4_experts_of_gpt_oss(tmp_path, largest):
    """As the released files have them: blocks and scales in place of floats."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tiny = _tiny("gpt-oss")
    sizes = {"hidden_size": 64, "intermediate_size": 64}
    tiny = type(tiny)(**vars(tiny) | {"settings": tiny.settings | sizes})
    theirs = make(tiny, tmp_path)
    tensors, values = load_file(tmp_path / "model.safetensors"), {}
    random = torch.Generator().manual_seed(1)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, into, out = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, out, into // 32, 16), generator=random, dtype=torch.uint8)
        scales = torch.randint(121, 126, (experts, out, into // 32), generator=random, dtype=torch.uint8)
        if largest == 255:  # of an expert that nobody chooses
            scales[0] = 255
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = blocks, scales
        values[name] = convert_moe_packed_tensors(blocks, scales).float()
    for name in tensors:
        if name.endswith("router.bias"):
            tensors[name][0] = -1e4
    values |= {name: tensor for name, tensor in tensors.items() if not name.endswith(("_blocks", "_scales"))}
    theirs.load_state_dict(values, strict=False)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors")
    files = ModelFiles(tmp_path)
    expected = "MXFP4" if largest < 255 else "BF16"
    assert files.weights["layers.0.experts.1.up.weight"].format.name == expected
    ids = _prompt(20)
    ours = Branches(files.transformer(ReferenceOps()), 64).forward([(0, 0, ids)], every_logit=True)
    _assert_close(ours, _oracle(theirs, ids))
