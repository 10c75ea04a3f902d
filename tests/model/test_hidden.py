"""The hidden states are what the language head reads: its product with them is the logits."""

from __future__ import annotations

import numpy as np
import pytest

from glassloop.model.cache import Branches
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import DEFAULT_MODEL, fetch
from glassloop.ops import choose_ops


@pytest.mark.parametrize(("ops", "tolerance"), [("reference", 1e-3), ("native", 0.15)])
def test_the_heads_product_with_the_hidden_states_are_the_logits(ops, tolerance):
    files = ModelFiles(fetch(DEFAULT_MODEL))
    head = files.weights["token_embedding.weight"].float32()  # the default model's head is tied
    model = files.transformer(choose_ops(ops))
    ids = [504, 3575, 282, 4649, 314]
    branches = Branches(model, len(ids), branches=2)
    logits = np.asarray(branches.forward([(0, 0, ids)], every_logit=True))
    hidden = np.asarray(model.hidden(branches.batch([(1, 0, ids)], every_logit=True), branches.pages))
    assert hidden.shape == (len(ids), model.config.dim)
    assert np.abs(hidden @ head.T - logits).max() < tolerance
    # One program does not disturb the other.
    again = np.asarray(branches.forward([(0, 0, ids)], every_logit=True))
    assert np.array_equal(again, logits)
