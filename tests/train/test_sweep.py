"""The scaling law: a fit finds the law that made the losses, and a sweep predicts before it runs."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from train.small import text_file, tiny_run

from glassloop.train.config import TrainError
from glassloop.train.research.scaling import Law, TrainedSize, fit
from glassloop.train.research.sweep import Size, head_width, larger, sweep, sweep_text

_SIZES, _BUDGETS = (2e4, 6e4, 1.5e5, 4.4e5), (5e4, 1e5, 2e5, 4e5)


def _runs(law: Law, noise: float = 0.0, seed: int = 0) -> list[TrainedSize]:
    random = np.random.default_rng(seed)
    return [
        TrainedSize(n, d, law.loss(n, d) * (1 + noise * random.standard_normal()))
        for n in _SIZES
        for d in _BUDGETS
    ]


@given(
    st.floats(0.2, 2.0), st.floats(0.25, 0.6), st.floats(0.25, 0.6), st.floats(0.3, 2.0), st.floats(0.3, 2.0)
)
@settings(max_examples=20, deadline=None)
def test_fit_finds_the_law_that_made_the_losses(floor, alpha, beta, share_a, share_b):
    """`share_a` and `share_b`: what weights and tokens add to the smallest run."""
    law = Law(floor, share_a * _SIZES[0] ** alpha, alpha, share_b * _BUDGETS[0] ** beta, beta)
    found = fit(_runs(law), resamples=2)
    for weights, tokens in [*zip(_SIZES, _BUDGETS, strict=True), (4 * _SIZES[-1], _BUDGETS[-1])]:
        assert found.law.loss(weights, tokens) == pytest.approx(law.loss(weights, tokens), rel=2e-3)


def test_intervals_hold_what_they_promise():
    """Of noisy sweeps, the interval has the parameters and a new run about as often as it says."""
    law = Law(1.0, 30.0, 0.35, 60.0, 0.4)
    expected = law.loss(1.8e6, 4e5)
    hits = 0
    for seed in range(8):
        found = fit(_runs(law, 0.004, seed), resamples=40, seed=seed).predict(1.8e6, 4e5)
        assert found.low <= found.value <= found.high
        assert abs(found.value / expected - 1) < 0.03
        hits += found.low <= expected <= found.high
    assert hits >= 6


def test_a_few_noisy_runs_have_a_law_with_wide_intervals():
    law = Law(0.02, 30.0, 0.35, 60.0, 0.4)
    runs = [run for run in _runs(law, 0.03) if run.weights < 1e5 and run.tokens < 3e5]
    found = fit(runs, resamples=50).predict(1e6, 4e5)
    assert 0 < found.low < found.high and found.high / found.low > 1.02


def test_losses_without_a_law_are_refused():
    with pytest.raises(TrainError, match="are too few"):
        fit([TrainedSize(1e4, 1e5, 2.0), TrainedSize(1e5, 1e5, 1.9)])
    with pytest.raises(TrainError, match="not a positive number"):
        fit([TrainedSize(n, d, float("nan")) for n in _SIZES for d in _BUDGETS])
    with pytest.raises(TrainError, match="do not fall"):
        fit([TrainedSize(n, d, 1 + n / 1e5 + d / 1e5) for n in _SIZES for d in _BUDGETS])


def test_a_larger_size_has_as_many_weights_as_asked_for():
    assert larger(Size(4, 96), 4, 32) == Size(6, 160)
    assert larger(Size(3, 80), 4, 16) == Size(5, 128)
    for text in ("4", "x96", "4x", "4x97", "0x32", "-1x32", "4x96x2", "４x96"):
        with pytest.raises(TrainError, match="sizes has"):
            Size.parse(text)
    assert Size.parse("4x96") == (4, 96)


def test_all_models_of_a_sweep_have_heads_of_one_width():
    assert head_width([Size(1, 32), Size(2, 96)]) == 32
    assert head_width([Size(1, 32), Size(2, 48), Size(3, 64)]) == 16


def test_a_sweep_predicts_before_it_runs_and_goes_on_where_it_was(tmp_path, monkeypatch):
    config = tiny_run(text_file(tmp_path), length=16, batch=2, warmup=100)
    sizes, budgets = [Size(1, 16), Size(1, 32), Size(1, 48)], [320, 960, 1920]
    first = sweep(config, tmp_path / "sweep", sizes=sizes, budgets=budgets, run_target=False, quiet=True)
    assert first.measured is None and len(first.runs) == 9
    kept = json.loads((tmp_path / "sweep" / "prediction.json").read_text())
    assert kept["predicted"]["value"] == first.predicted.value and kept["measured"] is None
    ElementTree.parse(tmp_path / "sweep" / "sweep.svg")

    made = []
    from glassloop.train.research import sweep as module

    real = module.train
    monkeypatch.setattr(module, "train", lambda c, f, **k: made.append(f.name) or real(c, f, **k))
    second = sweep(config, tmp_path / "sweep", sizes=sizes, budgets=budgets, quiet=True)
    assert made == [second.target] and second.runs == first.runs
    assert second.predicted == first.predicted and second.measured > 0
    assert second.target_weights >= 4 * max(run.weights for run in second.runs.values())
    assert json.loads((tmp_path / "sweep" / "prediction.json").read_text()) == kept
    text = sweep_text(second)
    assert "loss = " in text and f"measured: {second.measured:.4f}" in text
    ElementTree.parse(tmp_path / "sweep" / "sweep.svg")
