"""Adapters in the forward pass: what they add is what merged weights would add; a row's result depends on the
row alone; rows without an adapter keep their bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ops.random_adapters import check_adapters, merged, random_adapter
from ops.random_models import random_model, random_tensor
from ops.test_arithmetic import check_equal

from glassloop.errors import ModelError
from glassloop.model.cache import Branches
from glassloop.model.lens import Lens
from glassloop.model.transformer import Transformer
from glassloop.ops.batch import BatchError
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.quant import FORMATS
from glassloop.ops.reference import ReferenceOps
from glassloop.ops.tensor import Tensor


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_a_row_depends_on_its_own_adapter_alone(seed):
    check_adapters(seed)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32))
def test_the_instruction_sets_agree(seed):
    def logits() -> bytes:
        rng = np.random.default_rng(seed)
        config, weights = random_model(rng)
        model = Transformer(config, weights, NativeOps())
        for _ in range(2):
            model.load_adapter(random_adapter(rng, config))
        ids = rng.integers(0, config.vocab_size, 30).tolist()
        return Branches(model, 64).forward([(0, 0, ids)], True, rng.integers(0, 3, 30).tolist()).tobytes()

    check_equal(logits)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_an_adapter_computes_what_merged_weights_compute(seed):
    rng = np.random.default_rng(seed)
    config, weights = random_model(rng)
    adapter = random_adapter(rng, config)
    model = Transformer(config, weights, ReferenceOps())
    number = model.load_adapter(adapter)
    ids = rng.integers(0, config.vocab_size, 20).tolist()
    found = Branches(model, 64).forward([(0, 0, ids)], True, [number] * 20)
    changed = merged(weights, adapter)
    if adapter.embedding is not None:
        # The vector is added to the inputs alone, so the language head keeps the old table.
        table = weights["token_embedding.weight"]
        added = table.float32() + adapter.embedding / np.float32(config.embedding_scale)
        config = replace(config, tied=False)
        changed = {"head.weight": table} | changed | {table.name: Tensor.of(table.name, added)}
    expected = Branches(Transformer(config, changed, ReferenceOps()), 64).forward([(0, 0, ids)], True)
    assert np.abs(found - expected).max() <= 2e-4 * np.abs(expected).max()


@pytest.fixture(params=[NativeOps, ReferenceOps])
def adapted(request):
    """A model with an adapter that has the number 1, and the adapter."""
    rng = np.random.default_rng(3)
    config, weights = random_model(rng)
    model = Transformer(config, weights, request.param())
    adapter = random_adapter(rng, config)
    assert model.load_adapter(adapter) == 1
    return model, adapter


@pytest.mark.parametrize(
    "numbers", [[2, 0, 0], [0, -1, 0], [0, 0, 1 << 30], [0, 2**40, 1], [1, 1], [0, 0, 0, 0]]
)
def test_a_wrong_number_is_refused(adapted, numbers):
    with pytest.raises(BatchError, match=r"adapter|number"):
        Branches(adapted[0], 64).forward([(0, 0, [1, 0, 1])], True, numbers)


def test_an_adapter_of_another_shape_is_refused(adapted):
    model, adapter = adapted
    name, (down, up) = next(iter(adapter.matrices.items()))
    wider = random_tensor(np.random.default_rng(0), name, (adapter.rank, down.shape[1] + 1), FORMATS["F32"])
    more = random_tensor(np.random.default_rng(0), name, (up.shape[0], adapter.rank + 1), FORMATS["F32"])
    for matrices in ({name: (wider, up)}, {name: (down, more)}, {"layers.0.nothing": (down, up)}):
        with pytest.raises(ModelError, match=r"adapter random: layers.*does not fit"):
            model.load_adapter(replace(adapter, matrices=matrices))
    with pytest.raises(ModelError, match="adapter random: the embedding does not fit"):
        model.load_adapter(replace(adapter, embedding=np.zeros(1 + model.config.dim, np.float32)))


def test_the_number_of_an_unloaded_adapter_is_used_again_and_the_others_keep_theirs(adapted):
    model, adapter = adapted
    other = random_adapter(np.random.default_rng(8), model.config, "other")
    number = model.load_adapter(other)
    work = [(0, 0, [1, 0, 1, 1])]
    before = Branches(model, 64).forward(work, True, [number] * 4)
    model.unload_adapter(1)
    assert Branches(model, 64).forward(work, True, [number] * 4).tobytes() == before.tobytes()
    assert model.load_adapter(adapter) == 1 and model.load_adapter(adapter) == number + 1
    assert Branches(model, 64).forward(work, True, [number] * 4).tobytes() == before.tobytes()


def test_the_layer_lens_sees_the_adapter(adapted):
    model, _ = adapted
    cache = Branches(model, 64)
    logits = cache.forward([(0, 0, [1, 0, 1])], False, [1, 1, 1])
    batch = cache.batch([(0, 0, [1, 0, 1])])._replace(adapters=[1, 1, 1])
    lens = Lens(model)
    assert lens.layers(batch, cache.pages)[-1].tobytes() == logits[0].tobytes()
    assert lens.layers(batch._replace(adapters=[]), cache.pages)[-1].tobytes() != logits[0].tobytes()
