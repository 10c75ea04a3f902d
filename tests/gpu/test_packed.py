"""On a GPU: a model whose weights stay packed gives the logits of one whose weights were expanded to half
precision, bit for bit, for any number of rows."""

from __future__ import annotations

import numpy as np
import pytest
from ops.random_models import random_tensor

from glassloop.ops.torch import has_device

if not has_device():
    pytest.skip("needs a GPU, torch and Triton", allow_module_level=True)

from glassloop.model.cache import Branches
from glassloop.model.config import AttentionConfig, DenseConfig, LayerConfig, ModelConfig, NormConfig
from glassloop.model.rope import Rope
from glassloop.model.transformer import Transformer
from glassloop.ops.quant import FORMATS
from glassloop.ops.torch.matrix import Packed
from glassloop.ops.torch.ops import TorchOps


@pytest.mark.parametrize("kinds", [("Q8_0",), ("Q4_1", "Q4_0"), ("Q4_K", "Q6_K", "Q4_K")])
def test_packed_weights_have_the_bits_of_expanded_ones(kinds, monkeypatch):
    norm = NormConfig(1e-5)
    layer = LayerConfig(AttentionConfig(8, 2, 64, 0.125, None, Rope(10000.0, 64)), DenseConfig(1024), norm)
    config = ModelConfig("random", 3000, 512, 1024, (layer,) * 2, norm)
    rng = np.random.default_rng(0)
    weights = {
        name: random_tensor(
            rng, name, shape, FORMATS[kinds[number % len(kinds)]] if len(shape) == 2 else FORMATS["F32"]
        )
        for number, (name, shape) in enumerate(config.shapes().items())
    }
    text, found = rng.integers(0, 3000, 700).tolist(), []
    for stored in ("expanded", "packed"):
        monkeypatch.setenv("GLASSLOOP_GPU_WEIGHTS", stored)
        model = Transformer(config, weights, TorchOps())
        program = model._program.plain.__self__
        packed = [isinstance(each.get("weight"), Packed) for each in program._settings]
        assert any(packed) is (stored == "packed")
        rows, cache = [], Branches(model, 1024, branches=40)
        rows.append(cache.forward([(0, 0, text)], every_logit=True))  # expanded for the whole step
        for size in (1, 16, 17, 33, 65, 129, 300):
            rows.append(Branches(model, 1024).forward([(0, 0, text[:size])], every_logit=True))
        rows.append(cache.forward([(branch, 0, text[:3]) for branch in range(1, 40)]))
        rows.append(cache.forward([(branch, 3, text[3:4]) for branch in range(1, 40)]))  # a graph
        found.append(np.concatenate(rows))
    assert np.isfinite(found[0]).all() and found[0].tobytes() == found[1].tobytes()
