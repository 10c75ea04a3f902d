"""On a GPU: a row with an adapter depends on itself alone, bit for bit; a row without one has the bits of a
model without adapters, from other kernels."""

from __future__ import annotations

import numpy as np
import pytest

from glassloop.ops.torch import has_device

if not has_device():
    pytest.skip("needs a GPU, torch and Triton", allow_module_level=True)

from bench.gpu.shapes import random_model
from glassloop.model.adapter import Adapter
from glassloop.model.cache import Branches
from glassloop.model.config import ModelConfig
from glassloop.ops.tensor import Tensor


def _adapter(rng: np.random.Generator, config: ModelConfig, rank: int, targets: str) -> Adapter:
    def random(name: str, *shape: int) -> Tensor:
        return Tensor.of(name, rng.standard_normal(shape, np.float32) / np.float32(shape[1] ** 0.5))

    matrices = {
        (stem := name.removesuffix(".weight")): (random(stem, rank, shape[1]), random(stem, shape[0], rank))
        for name, shape in config.shapes().items()
        if name.startswith("layers.") and name.split(".")[2] in targets.split()
    }
    return Adapter("random", "", rank, 0.5, matrices, rng.standard_normal(config.dim, np.float32), None, {})


@pytest.mark.parametrize("shape", ["135m", "8b-3-layers"])
def test_no_row_depends_on_its_batch(shape):
    model, rng = random_model(shape), np.random.default_rng(0)
    for rank, targets in ((5, "q v"), (16, "q k v o gate up down"), (40, "o gate down")):
        model.load_adapter(_adapter(rng, model.config, rank, targets))
    lengths = rng.integers(1, 200, 24).tolist()
    texts = [rng.integers(0, model.config.vocab_size, length).tolist() for length in lengths]
    rows = [
        ([number] * len(ids) if index % 3 else rng.integers(0, 4, len(ids)).tolist())
        for index, (ids, number) in enumerate(zip(texts, rng.integers(0, 4, 24).tolist(), strict=True))
    ]
    plain = [not any(each) for each in rows]
    assert any(plain)
    alone = [
        Branches(model, 256).forward([(0, 0, ids)], True, () if none else each)
        for ids, each, none in zip(texts, rows, plain, strict=True)
    ]
    assert all(np.isfinite(logits).all() for logits in alone)
    together, done, compared = Branches(model, 256, branches=24), [0] * 24, 0
    while done != lengths:
        one_each = rng.random() < 0.5
        work, acting, expected = [], [], []
        for branch in rng.permutation(24).tolist():
            left = lengths[branch] - done[branch]
            count = min(left, 1) if one_each else int(rng.integers(0, left + 1))
            part = slice(done[branch], done[branch] + count)
            if count:
                work.append((branch, done[branch], texts[branch][part]))
                acting += rows[branch][part]
                expected.append(alone[branch][part])
                done[branch] += count
        if work:
            found = together.forward(work, True, acting)
            assert found.tobytes() == np.concatenate(expected).tobytes()
            compared += len(found)
    assert compared == sum(lengths)
