"""On a GPU: the logits of a row never depend on its batch, bit for bit. GLASSLOOP_GPU_ROWS says how many rows
are compared; `make test-gpu ROWS=1000000` before a release, and for every new kind of GPU."""

from __future__ import annotations

import os

import numpy as np
import pytest

from glassloop.ops.batch import Batch
from glassloop.ops.torch import has_device

if not has_device():
    pytest.skip("needs a GPU, torch and Triton", allow_module_level=True)

import torch

from bench.gpu.bits import Found, Texts
from bench.gpu.shapes import random_model
from glassloop.ops.torch.launcher import Launcher
from glassloop.ops.torch.program import SIZES

ROWS = int(os.environ.get("GLASSLOOP_GPU_ROWS", "20000"))


@pytest.fixture(scope="module")
def model():
    return random_model("8b-3-layers")


def compared(model, rows: int) -> Found:
    # Many rows take large batches, whose logits alone need 10 GB.
    texts, found = Texts(model, 96 if rows > 100_000 else 24, 300), Found()
    while found.rows < rows:
        texts.compute_again(found)
    return found


def test_no_row_depends_on_its_batch(model):
    assert compared(model, ROWS).differ == 0


def test_no_row_of_a_small_model_depends_on_its_batch():
    """With other sizes: 9 heads in groups of 3, heads of 64, a vocabulary of 49,152."""
    assert compared(random_model("135m"), min(ROWS, 20000)).differ == 0


def test_another_order_of_a_sum_is_noticed(model, monkeypatch):
    """Large batches sum the columns in two halves: the comparison must see it."""
    whole = Launcher._linear

    def halved(self, step, rows, out, x, added=None, *, weight, bias, gated=False, activation=0):
        if gated or rows <= 64:
            whole(
                self, step, rows, out, x, added, weight=weight, bias=bias, gated=gated, activation=activation
            )
            return
        middle = weight.shape[1] // 2
        first = torch.empty_like(out)
        own = {"weight": weight[:, :middle].contiguous(), "bias": bias}
        whole(self, step, rows, first, x[:, :middle], added, **own)
        own = {"weight": weight[:, middle:].contiguous(), "bias": None}
        whole(self, step, rows, out, x[:, middle:], first, **own)

    monkeypatch.setattr(Launcher, "_linear", halved)
    broken = random_model("8b-3-layers")  # its program knows the method above
    assert compared(broken, 1).differ > 0


@pytest.mark.parametrize("rows", SIZES)
def test_a_graph_always_gives_the_same_bits(model, rows):
    """200 replays: with kernels that are launched early, a missing wait shows only now and then."""
    rng = np.random.default_rng(rows)
    each = 20  # pages of a branch; attention has several units
    pages = model.ops.cache(model.cache_specs, model.page_bytes * rows * each)
    tables = np.arange(rows * each, dtype=np.int32).reshape(rows, 1, each)
    for group in pages:
        group.keys.normal_()
        group.values.normal_()
    lengths = rng.integers(0, 600, rows).tolist()
    batch = Batch.of([(tables[row], lengths[row], [row + 1]) for row in range(rows)])
    first = model.forward(batch, pages).values.clone()
    assert torch.isfinite(first).all()
    for number in range(200):
        again = model.forward(batch, pages).values
        assert torch.equal(again.view(torch.int32), first.view(torch.int32)), f"replay {number} differs"
