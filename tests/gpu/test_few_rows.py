"""On a GPU: the kernel for products of a few rows with a packed matrix gives the bits of Triton's kernels
with the expanded one, however often it runs."""

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
from glassloop.ops.quant import FORMATS
from glassloop.ops.torch import few_rows, nvrtc
from glassloop.ops.torch.device import tma_processors
from glassloop.ops.torch.launcher import Launcher
from glassloop.ops.torch.matrix import Packed
from glassloop.ops.torch.ops import TorchOps

if not tma_processors() or not nvrtc.is_available():
    pytest.skip("needs a GPU of compute capability 9.0 and NVRTC", allow_module_level=True)

# bits, zero, whether there is a minimum, the type of the scales, their group
KINDS = [
    (4, 0, True, torch.float16, 32),
    (4, 8, False, torch.float16, 32),
    (4, 0, True, torch.float32, 32),
    (8, 0, False, torch.float16, 32),
    (8, 0, True, torch.float32, 16),
]
SIZES = [
    (1, 4096, 4096),
    (2, 1000, 512),
    (8, 4096, 2048),
    (9, 24, 128),
    (5, 40, 128 * 19),
    (16, 100, 14336),
    (1, 16 * 132 * 2 + 5, 128 * 112),
    (16, 6144, 4096),
    (3, 16 * 132 * 7, 1024),
]


def random_matrix(bits, zero, minimum, kind, group, height, columns):
    generator = torch.Generator("cuda").manual_seed(height + columns)
    codes = torch.empty(height, columns * bits // 8, dtype=torch.uint8, device="cuda")
    codes.random_(generator=generator)
    scale = torch.rand(height, columns // group, device="cuda", generator=generator).add(0.01).half().to(kind)
    least = torch.randn(scale.shape, device="cuda", generator=generator).half().to(kind) if minimum else None
    return Packed(codes if bits == 4 else codes.view(torch.int8), scale, least, bits, zero, group)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_products_have_the_bits_of_the_other_kernels(kind):
    launcher = Launcher()
    for (rows, width, columns), gated in product(SIZES, (False, True)):
        weight = random_matrix(*kind, 2 * width if gated else width, columns)
        whole = weight.expanded()
        x = torch.randn(rows, columns, device="cuda") * torch.randn(rows, columns, device="cuda").exp()
        bias = torch.randn(len(whole), device="cuda") if gated == (rows % 2 == 0) else None
        added = None if gated else torch.randn(rows, width, device="cuda")
        half = x.bfloat16()
        out, expected = (
            torch.zeros(rows, width, device="cuda", dtype=torch.bfloat16 if gated else torch.float32)
            for _ in range(2)
        )
        few = few_rows.MatrixProduct(rows, out, half, added, weight, bias, gated, 2)
        assert few.can_launch()
        launcher.method("linear")(
            None, rows, expected, half, added, weight=whole, bias=bias, gated=gated, activation=2
        )
        for early in (False, True, True):
            out.zero_()
            few.launch(tma_processors(), early)
            assert torch.equal(out.view(torch.uint8), expected.view(torch.uint8)), (rows, width, gated)


@pytest.mark.parametrize("kinds", [("Q4_0",), ("Q4_1", "Q8_0")])
@pytest.mark.parametrize("norm", [NormConfig(1e-5), NormConfig(1e-5, "layer")])
def test_a_model_has_the_same_bits_with_packed_and_with_expanded_matrices(kinds, norm, monkeypatch):
    layer = LayerConfig(AttentionConfig(8, 2, 64, 0.125, None, Rope(10000.0, 64)), DenseConfig(1024), norm)
    config = ModelConfig("random", 3000, 512, 1024, (layer,) * 2, norm)
    rng = np.random.default_rng(0)
    weights = {
        name: random_tensor(
            rng, name, shape, FORMATS[kinds[number % len(kinds)]] if len(shape) == 2 else FORMATS["F32"]
        )
        for number, (name, shape) in enumerate(config.shapes().items())
    }
    monkeypatch.setenv("GLASSLOOP_GPU_WEIGHTS", "packed")
    found, text = [], rng.integers(0, 3000, 20).tolist()
    for most_rows in (0, 16):
        monkeypatch.setattr(few_rows, "MOST_ROWS", most_rows)
        model = Transformer(config, weights, TorchOps())
        cache, rows = Branches(model, 1024, branches=4), []
        rows.append(cache.forward([(0, 0, text[:5])], every_logit=True))
        for place in range(5, 20):  # graphs
            rows.append(cache.forward([(0, place, text[place : place + 1])]))
        rows.append(cache.forward([(branch, 0, text[:1]) for branch in range(1, 4)]))
        for _ in range(200):
            again = cache.forward([(0, 19, text[19:])])
            assert again.tobytes() == rows[-2].tobytes()
        found.append(np.concatenate(rows))
    assert np.isfinite(found[0]).all()
    assert all(each.tobytes() == found[0].tobytes() for each in found)
