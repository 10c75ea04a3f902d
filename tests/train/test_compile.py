"""Compiled layers compute what the others do. The compiler itself is left out: the graph is run as traced,
which takes a second where compiling takes a minute."""

from __future__ import annotations

import pytest
import torch
from train.small import tiny_run

from glassloop.train import network as module
from glassloop.train.gradient_ops import SequenceBatch
from glassloop.train.network import Network, _group_size
from glassloop.train.new_model import first_weights, new_config


def test_compiled_layers_have_the_same_gradients_and_share_their_code(monkeypatch):
    monkeypatch.setattr(module, "_MOST_LAYERS", 2)
    monkeypatch.setattr(
        module, "_compiled_forward", lambda made=torch.compile(module._forward, backend="eager"): made
    )
    config = new_config(tiny_run("none", layers=4, kv_heads=1), 64)
    weights = first_weights(config, 0)
    ids = torch.randint(0, 64, (2, 17), generator=torch.Generator().manual_seed(0))
    found = []
    torch._dynamo.utils.counters.clear()
    for compiled in (False, True):
        network = Network(config, weights, compile=compiled)
        assert len(network.transformer.layers) == (2 if compiled else 4)
        with network.training():
            batch = SequenceBatch(ids[:, :-1].reshape(-1), torch.arange(16).repeat(2), 2, 16)
            network.loss(batch, ids[:, 1:].reshape(-1)).backward()
        found.append({name: weight.grad for name, weight in network.parameters.items()})
    for name, gradient in found[0].items():
        assert torch.allclose(found[1][name], gradient, rtol=1e-4, atol=1e-6 * float(gradient.abs().max()))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1  # for two groups
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.parametrize(
    ("layers", "size"), [(1, 1), (6, 6), (30, 6), (16, 8), (32, 8), (22, 8), (13, 8), (28, 7)]
)
def test_groups_are_of_one_size_where_possible(layers, size):
    assert _group_size(layers) == size
