"""Quantized safetensors against the formulas of the libraries that write them, bit for bit: AWQ, GPTQ, MLX,
compressed-tensors, FP8, MXFP4 and ModelOpt's NVFP4, with random codes and all special values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model.tiny import TINY, make
from safetensors.torch import load_file, save_file

from glassloop.errors import ModelError
from glassloop.model.loader import ModelFiles
from glassloop.model.quantized import SCHEMES, read_weights
from glassloop.model.quantized.small_floats import E4M3, e8m0
from glassloop.ops.quant import F32, FORMATS
from glassloop.ops.tensor import Computed, Tensor

SOME = settings(max_examples=20, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)
CONFIG = {"model_type": "llama", "torch_dtype": "bfloat16"}


def _read(folder: Path, tensors: dict[str, torch.Tensor], options: Any, **config: Any) -> dict[str, Tensor]:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return read_weights(folder, CONFIG | config | {"quantization_config": options}).tensors


def _values(tensor: Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The values that a model computes with, rounded to the library's type."""
    return torch.from_numpy(tensor.float32().copy()).to(dtype)


def _same(tensor: Tensor, expected: torch.Tensor) -> None:
    values = _values(tensor, expected.dtype)
    assert values.shape == expected.shape
    kinds = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32}
    nan = torch.isnan(expected)
    assert torch.equal(torch.isnan(values), nan)
    # A zero may lose its sign: a code of 0 times a negative scale.
    values, expected = torch.where(nan, 0, values) + 0.0, torch.where(nan, 0, expected) + 0.0
    bits = kinds[expected.dtype]
    assert torch.equal(values.view(bits), expected.view(bits))


def _words(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Packs numbers along the last axis into 32-bit words, the lowest bits first."""
    stream = (codes[..., None].to(torch.int64) >> torch.arange(bits)) & 1
    stream = stream.flatten(-2)
    stream = torch.nn.functional.pad(stream, (0, -stream.shape[-1] % 32)).unflatten(-1, (-1, 32))
    return (stream << torch.arange(32)).sum(-1).to(torch.int32)


def _scales(random: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    scale = torch.rand(shape, generator=random) * 0.1
    scale.view(-1)[0] = 0.0
    scale.view(-1)[-1] *= -1
    return scale.to(dtype)


# ── AWQ, GPTQ, MLX ─────────────────────────────────────────────────────────────────────────────────────────


@SOME
@given(seed=SEEDS, group=st.sampled_from([32, 64, 128, -1]), middle=st.booleans())
def test_awq_is_what_autoawq_computes(tmp_path_factory, seed, group, middle):
    random = torch.Generator().manual_seed(seed)
    into, out = 128, 24
    groups = 1 if group == -1 else into // group
    codes = torch.randint(0, 16, (into, out), generator=random)
    zeros = torch.full((groups, out), 8) if middle else torch.randint(0, 16, (groups, out), generator=random)
    scales = _scales(random, (groups, out), torch.float16)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])  # AWQ_ORDER: the columns that a word holds, low bits first
    packed = {
        "a.qweight": _words(codes.unflatten(1, (-1, 8))[..., order].flatten(1), 4),
        "a.qzeros": _words(zeros.unflatten(1, (-1, 8))[..., order].flatten(1), 4),
        "a.scales": scales,
    }
    options = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    found = _read(tmp_path_factory.mktemp("awq"), packed, options)
    assert found.keys() == {"a.weight"}
    assert found["a.weight"].format.name == ("Q4_0" if middle else "INT4")
    wide = [each.repeat_interleave(into // groups, 0) for each in (zeros, scales)]
    _same(found["a.weight"], ((codes - wide[0]) * wide[1]).T)


@SOME
@given(
    seed=SEEDS,
    bits=st.sampled_from([2, 3, 4, 8]),
    groups=st.sampled_from([1, 2, 4]),
    order=st.sampled_from(["none", "plain", "desc_act"]),
    symmetric=st.booleans(),
    version=st.sampled_from(["gptq", "gptq_v2"]),
)
def test_gptq_is_what_gptqmodel_computes(tmp_path_factory, seed, bits, groups, order, symmetric, version):
    random = torch.Generator().manual_seed(seed)
    into, out, most = 128, 32, (1 << bits) - 1
    codes = torch.randint(0, most + 1, (into, out), generator=random)
    zeros = torch.randint(1, most + 1, (groups, out), generator=random)
    zeros = torch.full((groups, out), 1 << (bits - 1)) if symmetric else zeros
    scales = _scales(random, (groups, out), torch.float16)
    g_idx = (torch.arange(into) // (into // groups)).to(torch.int32)
    if order == "desc_act":
        g_idx = g_idx[torch.randperm(into, generator=random)]
    packed = {
        "a.qweight": _words(codes.T, bits).T,
        "a.qzeros": _words(zeros - (1 if version == "gptq" else 0), bits),
        "a.scales": scales,
        **({} if order == "none" else {"a.g_idx": g_idx}),
    }
    options = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": into // groups,
        "checkpoint_format": version,
    }
    found = _read(tmp_path_factory.mktemp("gptq"), packed, options)["a.weight"]
    expected = (scales[g_idx.long()] * (codes - zeros[g_idx.long()]).to(torch.int16)).T
    _same(found, expected.to(torch.float16))
    if order != "desc_act" or groups == 1:
        exact = {2: "Q4_0", 3: "Q4_0", 4: "Q4_0" if symmetric else "INT4", 8: "Q8_0" if symmetric else None}[
            bits
        ]
        assert exact is None or found.format.name == exact


@SOME
@given(
    seed=SEEDS,
    bits=st.sampled_from([2, 3, 4, 5, 6, 8]),
    group=st.sampled_from([32, 64, 128]),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
)
def test_mlx_groups_are_scale_times_code_plus_bias(tmp_path_factory, seed, bits, group, dtype):
    random = torch.Generator().manual_seed(seed)
    out, into = 6, 256
    codes = torch.randint(0, 1 << bits, (out, into), generator=random)
    scales = _scales(random, (out, into // group), dtype)
    biases = torch.randn((out, into // group), generator=random).to(dtype)
    words = _words(codes, bits).view(torch.uint32)
    packed = {"a.weight": words, "a.scales": scales, "a.biases": biases, "n.weight": torch.ones(4)}
    save_file(packed, (folder := tmp_path_factory.mktemp("mlx")) / "model.safetensors")
    found = read_weights(folder, CONFIG | {"quantization": {"bits": bits, "group_size": group}}).tensors
    assert found.keys() == {"a.weight", "n.weight"}
    wide = [each.float().repeat_interleave(group, 1) for each in (scales, biases)]
    expected = codes.float() * wide[0] + wide[1]
    _same(found["a.weight"], expected if found["a.weight"].format.name == "Q4_1" else expected.to(dtype))
    if dtype is torch.float16:
        assert found["a.weight"].format.name == ("Q4_1" if bits <= 4 else "F16")


# ── compressed-tensors ─────────────────────────────────────────────────────────────────────────────────────


def _compressed(format: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": group}}


@SOME
@given(
    seed=SEEDS,
    bits=st.sampled_from([4, 8]),
    groups=st.sampled_from([1, 2, 4]),
    zeros=st.booleans(),
    order=st.booleans(),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
)
def test_packed_integers_of_compressed_tensors(tmp_path_factory, seed, bits, groups, zeros, order, dtype):
    random = torch.Generator().manual_seed(seed)
    out, into, middle = 8, 128, 1 << (bits - 1)
    codes = torch.randint(-middle, middle, (out, into), generator=random)
    zero = (
        torch.randint(-middle, middle, (out, groups), generator=random) if zeros else torch.zeros(out, groups)
    )
    scale = _scales(random, (out, groups), dtype)
    g_idx = (torch.arange(into) // (into // groups)).to(torch.int32)
    if order:
        g_idx = g_idx[torch.randperm(into, generator=random)]
    packed = {
        "a.weight_packed": _words(codes + middle, bits),
        "a.weight_scale": scale,
        "a.weight_shape": torch.tensor([out, into]),
        **({"a.weight_zero_point": _words((zero + middle).long().T, bits).T} if zeros else {}),
        **({"a.weight_g_idx": g_idx} if order else {}),
    }
    options = _compressed("pack-quantized", num_bits=bits, type="int", strategy="group", symmetric=not zeros)
    found = _read(tmp_path_factory.mktemp("packed"), packed, options)
    assert found.keys() == {"a.weight"}
    _same(found["a.weight"], ((codes - zero[:, g_idx.long()]).to(dtype) * scale[:, g_idx.long()]).to(dtype))


@SOME
@given(
    seed=SEEDS,
    rows=st.sampled_from(["tensor", "channel"]),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
)
def test_int8_of_compressed_tensors(tmp_path_factory, seed, rows, dtype):
    random = torch.Generator().manual_seed(seed)
    codes = torch.randint(-128, 128, (8, 64), generator=random).to(torch.int8)
    scale = _scales(random, (8, 1) if rows == "channel" else (1,), dtype)
    options = _compressed("int-quantized", num_bits=8, type="int", strategy=rows, symmetric=True)
    found = _read(tmp_path_factory.mktemp("int8"), {"a.weight": codes, "a.weight_scale": scale}, options)
    _same(found["a.weight"], codes.to(dtype) * scale)


# ── small floats ───────────────────────────────────────────────────────────────────────────────────────────


def test_every_code_of_e4m3_and_e8m0():
    codes = torch.arange(256, dtype=torch.uint8)
    theirs = codes.view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(E4M3, theirs)
    assert np.array_equal(np.signbit(E4M3[~np.isnan(E4M3)]), np.signbit(theirs[~np.isnan(theirs)]))
    powers = codes.view(torch.float8_e8m0fnu).float().numpy()
    np.testing.assert_array_equal(e8m0(codes.numpy()), powers)


@SOME
@given(
    seed=SEEDS,
    kind=st.sampled_from(["block", "channel", "flat channel", "tensor", "scalar"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    shape=st.sampled_from([(256, 128), (130, 384), (130, 300), (8, 64)]),
)
def test_fp8_with_every_kind_of_scale(tmp_path_factory, seed, kind, dtype, shape):
    random = torch.Generator().manual_seed(seed)
    out, into = shape
    bits = torch.randint(0, 256, shape, generator=random, dtype=torch.uint8)  # NaN included
    weight = bits.view(torch.float8_e4m3fn)
    shapes = {"channel": (out, 1), "flat channel": (out,), "tensor": (1,), "scalar": ()}
    scale = _scales(random, shapes.get(kind, (-(-out // 128), -(-into // 128))), dtype)
    name = "a.weight_scale_inv" if kind == "block" else "a.weight_scale"
    options = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    stored = {"a.weight": weight, name: scale, "a.input_scale": torch.ones(1)}
    found = _read(tmp_path_factory.mktemp("fp8"), stored, options)
    assert found.keys() == {"a.weight"} and found["a.weight"].format.name == "BF16"
    wide = scale.float()
    if kind == "block":
        wide = wide.repeat_interleave(128, 0)[:out].repeat_interleave(128, 1)[:, :into]
    elif kind == "flat channel":
        wide = wide[:, None]
    _same(found["a.weight"], (weight.float() * wide).to(torch.bfloat16))
    origin = found["a.weight"].origin  # what a GPU keeps: the codes as stored
    assert (origin is None) is (into % 128 != 0)
    if origin is not None:
        assert origin.format.name == "F8_E4M3" and origin.data.nbytes == out * into // 128 * 132
        values = torch.from_numpy(origin.float32()).to(torch.bfloat16)
        _same(found["a.weight"], values)
        _same(found["a.weight"].rows(slice(None, None, 2)), values[::2])
        assert found["a.weight"].rows(slice(None, None, 2)).origin.float32().shape == values[::2].shape


_E2M1 = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def _fp4(random: torch.Generator, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Random codes of E2M1, two in a byte, and their values."""
    codes = torch.randint(0, 16, shape, generator=random)
    packed = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
    return packed, _E2M1[codes]


@SOME
@given(
    seed=SEEDS,
    by=st.sampled_from(["modelopt", "compressed-tensors"]),
    dtype=st.sampled_from(["bfloat16", None]),
)
def test_nvfp4_of_both_writers(tmp_path_factory, seed, by, dtype):
    random = torch.Generator().manual_seed(seed)
    packed, values = _fp4(random, (6, 64))
    scale = torch.randint(0, 256, (6, 4), generator=random, dtype=torch.uint8).view(torch.float8_e4m3fn)
    whole = torch.rand(1, generator=random) + 0.01
    config = {"torch_dtype": dtype}
    if by == "modelopt":
        options: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
        stored = {"a.weight": packed, "a.weight_scale": scale, "a.weight_scale_2": whole[0]}
        stored["a.input_scale"] = torch.ones(())
        wide = scale.float() * whole
    else:
        options = _compressed("nvfp4-pack-quantized", num_bits=4, type="float", group_size=16)
        stored = {"a.weight_packed": packed, "a.weight_scale": scale, "a.weight_global_scale": whole}
        wide = scale.float() / whole
    found = _read(tmp_path_factory.mktemp("nvfp4"), stored, options, **config)
    assert found.keys() == {"a.weight"}
    expected = values * wide.repeat_interleave(16, 1)
    _same(found["a.weight"], expected.to(torch.bfloat16) if dtype else expected)


@SOME
@given(seed=SEEDS, usual=st.booleans())
def test_mxfp4_is_exact(tmp_path_factory, seed, usual):
    random = torch.Generator().manual_seed(seed)
    packed, values = _fp4(random, (6, 64))
    low, high = (115, 135) if usual else (1, 250)
    scale = torch.randint(low, high, (6, 2), generator=random, dtype=torch.uint8)
    stored = {"a.weight_packed": packed, "a.weight_scale": scale}
    options = _compressed("mxfp4-pack-quantized", num_bits=4, type="float", group_size=32)
    found = _read(tmp_path_factory.mktemp("mxfp4"), stored, options)["a.weight"]
    if "MXFP4" in FORMATS:
        assert found.format.name == "MXFP4"
    elif usual:
        assert found.format.name == "Q8_0"
    _same(found, values * torch.exp2(scale.float() - 127).repeat_interleave(32, 1))


def test_the_experts_of_gpt_oss_are_what_transformers_computes(tmp_path):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    random = torch.Generator().manual_seed(1)
    blocks = torch.randint(0, 256, (3, 8, 2, 16), generator=random, dtype=torch.uint8)
    scales = torch.randint(100, 150, (3, 8, 2), generator=random, dtype=torch.uint8)
    stored = {"m.gate_up_proj_blocks": blocks, "m.gate_up_proj_scales": scales}
    found = _read(tmp_path, stored, {"quant_method": "mxfp4"})["m.gate_up_proj"]
    theirs = convert_moe_packed_tensors(blocks, scales)  # [experts, in, out]
    _same(found, theirs.transpose(1, 2).contiguous())


# ── whole models ───────────────────────────────────────────────────────────────────────────────────────────


def _quantized_folder(folder: Path) -> dict[str, torch.Tensor]:
    """Makes a tiny Llama whose matrices are GPTQ of 8 bits, and returns the values that they stand for."""
    make(next(tiny for tiny in TINY if tiny.name == "qwen3"), folder)
    tensors, expected = load_file(folder / "model.safetensors"), {}
    stored: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if "_proj.weight" not in name:
            stored[name] = tensor.contiguous()
            continue
        stem = name.removesuffix(".weight")
        scale = (tensor.abs().amax(1) / 127).to(torch.float16)  # [out]
        codes = (tensor / scale.float()[:, None]).round().clamp(-128, 127).to(torch.int64)
        expected[name] = codes.float() * scale.float()[:, None]
        stored[f"{stem}.qweight"] = _words(codes + 128, 8).T.contiguous()
        stored[f"{stem}.qzeros"] = _words(torch.full((1, len(codes)), 127), 8)
        stored[f"{stem}.scales"] = scale[None].contiguous()
        stored[f"{stem}.g_idx"] = torch.zeros(codes.shape[1], dtype=torch.int32)
    save_file(stored, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": False}
    (folder / "config.json").write_text(json.dumps(config))
    return expected


def test_a_quantized_model_computes_and_says_what_became_of_it(tmp_path):
    from glassloop.model.cache import Branches
    from glassloop.ops import choose_ops

    expected = _quantized_folder(tmp_path)
    files = ModelFiles(tmp_path)
    assert files.notes and "GPTQ matrices are computed in" in files.notes[0]
    weights = {tensor.name: tensor for tensor in files.weights.values()}
    for name, values in expected.items():
        exact = values.shape[1] % 32 == 0  # else no block fits
        _same(weights[name], values if exact else values.to(torch.float16))
    logits = [
        Branches(files.transformer(choose_ops(name)), 4).forward([(0, 0, [1, 2, 3, 4])])[0]
        for name in ("reference", "native")
    ]
    assert np.isfinite(logits[0]).all()
    np.testing.assert_allclose(logits[1], logits[0], atol=0.05 * np.abs(logits[0]).max())


@pytest.mark.parametrize("op_set", ["reference", "native"])
def test_each_matrix_is_computed_once_when_it_is_loaded(op_set):
    from glassloop.model import model_check as check
    from glassloop.ops import choose_ops

    computed = []

    def compute() -> np.ndarray:
        computed.append(1)
        return np.zeros(4 * 64 * 32, np.uint8)

    tensor = Computed.later("a", (64, 32), F32, compute)
    assert tensor.shape == (64, 32) and tensor.size == 2048 and not computed
    some = tensor.rows(slice(8, 24))
    assert some.shape == (16, 32) and not computed and some.float32().shape == (16, 32)
    computed.clear()
    choose_ops(op_set).matrix(tensor)
    assert len(computed) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "_MOST_VALUES", 64)
        check._check_finite(Path("m"), tensor)
    assert len(computed) == 2


def test_schemes_that_are_not_read_are_named(tmp_path):
    for method in ("bitsandbytes", "torchao", None, 7):
        with pytest.raises(ModelError, match=r"quant_method is .* are read: get the unquantized") as caught:
            _read(tmp_path, {"a.weight": torch.ones(2, 2)}, {"quant_method": method})
        assert "gptq" in str(caught.value) and "awq" in SCHEMES and "\n" not in str(caught.value)
    for options in ({"quant_method": "awq", "bits": 3}, {"quant_method": "awq", "version": "gemv"}):
        with pytest.raises(ModelError, match="is read"):
            _read(tmp_path, {"a.weight": torch.ones(2, 2)}, options)
    with pytest.raises(ModelError, match="marlin"):
        _read(tmp_path, {}, _compressed("marlin-24", num_bits=4))


def test_quantized_weights_without_a_config_are_named(tmp_path):
    save_file({"a.weight": torch.ones(4, 4, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"a\.weight has dtype I8, but config\.json has no quantization"):
        read_weights(tmp_path, CONFIG)
