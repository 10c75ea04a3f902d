"""On a GPU: products with packed matrices have the same bits by every kernel and for any number of rows. So
have the logits of a model with packed weights, however often a graph runs."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from ops.random_models import random_tensor

from glassloop.ops.torch import has_device

if not has_device():
    pytest.skip("needs a GPU, torch and Triton", allow_module_level=True)

import torch

from glassloop.model.cache import Branches
from glassloop.model.config import AttentionConfig, DenseConfig, LayerConfig, ModelConfig, NormConfig
from glassloop.model.rope import Rope
from glassloop.model.transformer import Transformer
from glassloop.ops.quant import BF16, F8_E4M3, FORMATS, quantize
from glassloop.ops.tensor import Computed, Tensor
from glassloop.ops.torch import nvrtc, packed_linear
from glassloop.ops.torch.device import default_device
from glassloop.ops.torch.launcher import Launcher
from glassloop.ops.torch.matrix import MatrixProduct, TorchMatrix
from glassloop.ops.torch.ops import TorchOps
from glassloop.ops.torch.packed import Form, PackedMatrix

SILU = 2
TABLE = tuple(int(value) for value in FORMATS["IQ4_NL"].table)
KINDS = [Form(8, 128, False, is_float=True), Form(4, 32, False, TABLE), Form(4, 16, True, TABLE)]
KINDS += [Form(4, 32, True), Form(4, 32, False), Form(8, 32, False), Form(8, 16, True)]
# The width and the columns.
SIZES = [(4096, 4096), (1000, 512), (24, 128), (40, 128 * 19), (104, 14336), (16 * 132 * 3 + 8, 1024)]


def random_matrix(form, height, columns):
    bits, group, has_middle, table, is_float = form
    most = 1 << (bits - 1)
    codes = torch.randint(-most, most, (height, columns), dtype=torch.int8, device="cuda")
    if table:
        codes += most  # places in it
    if is_float:
        codes[codes & 127 == 127] = 1  # NaN
    scale = torch.rand(height, columns // group, device="cuda") + 0.01
    # Some are so small that the sum with a product is rounded only because of them.
    middle = torch.randn(scale.shape, device="cuda") * 2.0 ** torch.randint(
        -40, 3, scale.shape, device="cuda"
    )
    return PackedMatrix.of(codes, scale, middle if has_middle else None, bits, table, is_float)


def exact_values(weight: PackedMatrix) -> torch.Tensor:
    """Returns the values of a matrix in half precision, rounded once: first to an odd float32, if they are
    not exact, which is never halfway between two of half precision. Small floats are rounded twice."""
    if weight.form.is_float:
        return weight.expanded(torch.bfloat16)
    codes, scale, middle = weight.parts()
    product = codes.double().unflatten(1, (-1, weight.form.group)) * scale.double()[..., None]
    added = torch.zeros_like(product) if middle is None else middle.double()[..., None].expand_as(product)
    total = product + added
    back = total - product
    missing = (product - (total - back)) + (added - back)  # what the sum in float64 has lost
    near = total.float()
    error = (total - near.double()) + missing
    bits = near.view(torch.int32) - ((error != 0) & ((error < 0) == (near > 0))).int()
    return (bits | (error != 0)).view(torch.float32).flatten(1).bfloat16()


@pytest.mark.parametrize("form", KINDS, ids=str)
def test_kernels_expand_the_values_that_the_host_does(form):
    torch.manual_seed(0)
    weight = random_matrix(form, 40, 384)
    launcher = Launcher(default_device())
    expanded = launcher._products._expand(weight, launcher._launch)
    assert torch.equal(expanded.view(torch.int16), exact_values(weight).view(torch.int16))


@pytest.mark.skipif(not nvrtc.is_available(), reason="needs NVRTC")
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_all_kernels_have_the_same_bits(kind, monkeypatch):
    torch.manual_seed(0)
    device = default_device()
    launcher = Launcher(device)
    for (width, columns), outputs in product(SIZES, ("plain", "gated", "in turn")):
        if outputs == "plain":
            weight = random_matrix(kind, width, columns)
        else:
            parts = [TorchMatrix.of(random_matrix(kind, width, columns), device) for _ in range(2)]
            weight = TorchMatrix.joined(parts, in_turn=True)
            assert isinstance(weight, PackedMatrix) and weight.matrices == 2
        gated = outputs == "gated"
        width = weight.shape[0] // 2 if gated else weight.shape[0]
        x = torch.randn(70, columns, device="cuda") * torch.randn(70, columns, device="cuda").exp()
        x = x.bfloat16()
        bias = torch.randn(weight.shape[0], device="cuda") if outputs != "plain" else None
        added = torch.randn(70, width, device="cuda") if outputs == "plain" else None
        settings = {"weight": weight, "bias": bias, "gated": gated, "activation": SILU}
        out = torch.bfloat16 if gated else torch.float32
        expected = torch.zeros(70, width, device="cuda", dtype=out)
        with monkeypatch.context() as patch:
            patch.setattr(packed_linear, "MOST_ROWS", 0)
            launcher.method("linear")(None, 70, expected, x, added, **settings)
        reference = x.double() @ exact_values(weight).double().T
        if bias is not None:
            reference += bias
        if gated:
            reference = torch.nn.functional.silu(reference[:, 0::2]) * reference[:, 1::2]
        if added is not None:
            reference += added
        difference = (expected - reference).abs().max() / reference.abs().max()
        assert difference < (0.01 if gated else 1e-4), (outputs, width, columns)
        for rows in (1, 2, 5, 8, 9, 16, 17, 32, 64):
            for early in (False, True):
                found = torch.zeros(rows, width, device="cuda", dtype=out)
                each = MatrixProduct(rows, found, x, added, weight, bias, gated, SILU)
                assert packed_linear.can_launch(each, device)
                packed_linear.launch(each, device, early)
                same = torch.equal(found.view(torch.uint8), expected[:rows].view(torch.uint8))
                assert same, (outputs, rows, width, columns)


def small_floats(rng, name, shape):
    """Returns a matrix as the reader of FP8 does: bfloat16, and what it was rounded from."""
    blocks = rng.integers(0, 256, (shape[0], shape[1] // 128, 132), np.uint8)
    blocks[..., 4:] &= 0xBF  # up to 2
    blocks[..., :4] = np.array([1.3 / np.sqrt(shape[1])], "<f4").view(np.uint8)
    stored = Tensor(name, shape, F8_E4M3, blocks.reshape(-1))
    return Computed.later(name, shape, BF16, lambda: quantize(BF16, stored.float32().reshape(-1)), stored)


@pytest.mark.parametrize(
    "kinds",
    [
        *(("F8_E4M3",), ("IQ4_XS",), ("IQ2_XS", "Q2_K", "MXFP4")),
        *(("Q8_0",), ("Q4_1", "Q4_0"), ("Q4_K", "Q6_K", "Q4_K")),
    ],
)
@pytest.mark.parametrize("norm", [NormConfig(1e-5), NormConfig(1e-5, "layer")])
def test_no_row_of_a_packed_model_depends_on_its_batch(kinds, norm, monkeypatch):
    layer = LayerConfig(AttentionConfig(8, 2, 64, 0.125, None, Rope(10000.0, 64)), DenseConfig(1024), norm)
    config = ModelConfig("random", 3000, 512, 1024, (layer,) * 2, norm)
    rng = np.random.default_rng(0)
    weights = {}
    for number, (name, shape) in enumerate(config.shapes().items()):
        kind = kinds[number % len(kinds)] if len(shape) == 2 else "F32"
        weights[name] = (
            small_floats(rng, name, shape)
            if kind == "F8_E4M3"
            else random_tensor(rng, name, shape, FORMATS[kind])
        )
    text, found = rng.integers(0, 3000, 600).tolist(), {}
    for stored in ("expanded", "packed"):
        monkeypatch.setenv("GLASSLOOP_GPU_WEIGHTS", stored)
        model = Transformer(config, weights, TorchOps())
        assert model.ops.description.endswith("/packed") is (stored == "packed")
        found[stored] = Branches(model, 1024).forward([(0, 0, text)], every_logit=True)
    whole = found["packed"]
    # The values of an expanded weight are rounded to half precision, and its scales are not.
    assert np.abs(whole - found["expanded"]).max() < 0.05 * np.abs(whole).max()
    monkeypatch.delenv("GLASSLOOP_GPU_WEIGHTS")
    stays_packed = Transformer(config, weights, TorchOps()).ops.description.endswith("/packed")
    assert stays_packed is (kinds == ("F8_E4M3",))  # by default, where there is room for all
    for size in (1, 2, 3, 8, 16, 17, 32, 33, 64, 65, 129, 300):
        rows = Branches(model, 1024).forward([(0, 0, text[:size])], every_logit=True)
        assert rows.tobytes() == whole[:size].tobytes(), size
    for streams in (1, 2, 3, 12, 32, 40):
        cache = Branches(model, 1024, branches=streams)
        cache.forward([(branch, 0, text[:7]) for branch in range(streams)])
        for number in range(200 if streams < 4 else 20):  # graphs
            rows = cache.forward([(branch, 7, text[7:8]) for branch in range(streams)])
            assert all(row.tobytes() == whole[7].tobytes() for row in rows), (streams, number)
