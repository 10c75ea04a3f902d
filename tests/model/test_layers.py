"""A model is the sum of its layers, and each layer is the sum of its parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ops.random_models import random_tensor

from glassloop.model.cache import Branches
from glassloop.model.config import AttentionConfig, DenseConfig, LayerConfig, ModelConfig, NormConfig
from glassloop.model.rope import Rope
from glassloop.model.transformer import Transformer
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.quant import FORMATS
from glassloop.ops.reference import ReferenceOps
from glassloop.ops.tensor import Tensor

NORM = NormConfig(1e-5)
ATTENTION = AttentionConfig(heads=4, kv_heads=2, head_dim=16, scale=0.25)
DENSE = DenseConfig(ffn_dim=64)
LAYER = LayerConfig(ATTENTION, DENSE, NORM)
MODEL = ModelConfig("mixed", vocab_size=60, dim=32, context=100, layers=(LAYER,), final_norm=NORM)


def test_the_shapes_of_a_model_are_those_of_its_parts() -> None:
    wide = LayerConfig(
        replace(ATTENTION, heads=8, qk_norm=NORM), DenseConfig(96, gated=False), NORM, "sandwich"
    )
    shapes = replace(MODEL, layers=(LAYER, wide)).shapes()
    for index, layer in enumerate((LAYER, wide)):
        prefix = f"layers.{index}."
        ours = {name.removeprefix(prefix): shape for name, shape in shapes.items() if prefix in name}
        parts = layer.mixer.shapes(32) | layer.feed_forward.shapes(32)
        assert parts.items() <= ours.items()
        assert ours.keys() - parts.keys() <= {
            f"{part}_{kind}.weight" for part in ("attn", "ffn") for kind in ("norm", "post_norm")
        }
    assert shapes["layers.1.q.weight"] == (128, 32) and "layers.1.gate.weight" not in shapes
    assert "layers.0.attn_post_norm.weight" not in shapes and "layers.1.attn_post_norm.weight" in shapes


def test_layers_of_different_kinds_and_sizes_make_one_model() -> None:
    """Heads, key-value heads, head sizes, windows, positions, norms and feed-forwards differ."""
    rope = Rope(10_000.0, 8)
    layers = (
        LAYER,
        LayerConfig(
            AttentionConfig(6, 3, 8, 0.3, window=5, rope=rope), DenseConfig(48, "relu", False, True), NORM
        ),
        LayerConfig(
            AttentionConfig(2, 1, 32, 0.2, rope=rope, qk_norm=NORM),
            DENSE,
            NormConfig(1e-6, "layer"),
            "sandwich",
        ),
        LayerConfig(replace(ATTENTION, window=5, softcap=3.0), DENSE, NORM, "post"),
    )
    config = replace(MODEL, layers=layers)
    rng = np.random.default_rng(0)
    weights = {
        name: random_tensor(rng, name, shape, FORMATS["F32"]) for name, shape in config.shapes().items()
    }
    ids = rng.integers(0, 60, 40).tolist()
    native, reference = (Transformer(config, weights, ops) for ops in (NativeOps(), ReferenceOps()))
    assert [spec.window for spec in native.cache_specs] == [None, 5, None, 5]
    assert (config.heads, config.kv_heads, config.head_dim, config.ffn_dim) == (4, 2, 16, 64)
    expected = Branches(reference, 64).forward([(0, 0, ids)], every_logit=True)
    whole = Branches(native, 64).forward([(0, 0, ids)], every_logit=True)
    assert np.abs(whole - expected).max() / np.abs(expected).max() < 0.01
    for _ in range(20):  # threads that shared their scratch memory would be wrong now and then
        cache = Branches(native, 64)
        parts = [cache.forward([(0, at, ids[at : at + 7])], every_logit=True) for at in range(0, 40, 7)]
        assert np.concatenate(parts).tobytes() == whole.tobytes()


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: replace(ATTENTION, heads=0), "heads is 0"),
        (lambda: replace(ATTENTION, heads=1 << 20), "heads is 1048576; 1 to 16384"),
        (lambda: replace(ATTENTION, kv_heads=3), "heads is 4, not a multiple of kv_heads 3"),
        (lambda: replace(ATTENTION, head_dim=-1), "head_dim is -1"),
        (lambda: replace(ATTENTION, scale=float("nan")), "scale is nan"),
        (lambda: replace(ATTENTION, window=0), "window is 0"),
        (lambda: replace(ATTENTION, softcap=-1.0), "softcap is -1"),
        (lambda: replace(ATTENTION, rope=Rope(10.0, 17)), "rope turns 17 of 16"),
        (lambda: replace(DENSE, ffn_dim=1 << 30), "ffn_dim is"),
        (lambda: NormConfig(0.0), "eps is 0.0"),
        (lambda: replace(MODEL, vocab_size=1 << 30), "vocab_size is"),
        (lambda: replace(MODEL, dim=0), "dim is 0"),
        (lambda: replace(MODEL, layers=()), "layers is 0"),
        (lambda: replace(MODEL, embedding_scale=float("inf")), "embedding_scale is inf"),
        (lambda: replace(MODEL, context=1 << 24, positions="sinusoidal"), "context is 16777216"),
    ],
)
def test_a_number_out_of_bounds_is_refused_by_name(make, named) -> None:
    with pytest.raises(ValueError, match=named):
        make()


def test_an_output_gate_and_sinks_do_what_their_definition_says() -> None:
    """Sinks of minus a thousand and a gate that is wide open change nothing."""
    gated = replace(ATTENTION, output_gate=True, sinks=True)
    with_both = replace(MODEL, layers=(replace(LAYER, mixer=gated),))
    rng = np.random.default_rng(1)
    weights = {
        name: random_tensor(rng, name, shape, FORMATS["F32"]) for name, shape in with_both.shapes().items()
    }
    assert with_both.shapes()["layers.0.out_gate.weight"] == (64, 32)
    assert with_both.shapes()["layers.0.sinks.weight"] == (4,)
    ids = rng.integers(0, 60, 20).tolist()

    def logits(config: ModelConfig, ops: NativeOps | ReferenceOps) -> np.ndarray:
        chosen = {name: weights[name] for name in config.shapes()}
        return Branches(Transformer(config, chosen, ops), 64).forward([(0, 0, ids)], every_logit=True)

    both = logits(with_both, ReferenceOps())
    assert np.abs(logits(with_both, NativeOps()) - both).max() / np.abs(both).max() < 0.01
    weights["layers.0.sinks.weight"] = Tensor.of("sinks", np.full(4, -1000, np.float32))
    only_gate = replace(MODEL, layers=(replace(LAYER, mixer=replace(gated, sinks=False)),))
    assert logits(with_both, ReferenceOps()).tobytes() == logits(only_gate, ReferenceOps()).tobytes()
    weights["layers.0.out_gate.weight"] = Tensor.of("gate", np.zeros((64, 32), np.float32))
    half = logits(only_gate, ReferenceOps())  # sigmoid(0): half of what attention returns
    weights["layers.0.o.weight"] = Tensor.of("o", weights["layers.0.o.weight"].float32() / 2)
    assert np.abs(logits(MODEL, ReferenceOps()) - half).max() < 1e-5
