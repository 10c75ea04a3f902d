"""Muon: orthogonal steps, resumed exactly, and skipped after a gradient that is not finite."""

from __future__ import annotations

import pytest
import torch
from train.small import text_file, tiny_run

from glassloop.train.muon import Muon, orthogonal
from glassloop.train.train import resume, train


class _Killed(Exception):
    pass


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 5, 12), (2, 12, 5)])
def test_steps_are_nearly_orthogonal(shape):
    found = orthogonal(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    sizes = torch.linalg.svdvals(found)
    assert found.shape == shape and float(sizes.min()) > 0.4 and float(sizes.max()) < 1.4


def test_a_step_of_matrices_is_that_of_torch():
    """torch's own Muon, with the same size of a step, moves a matrix in the same direction."""
    weight = torch.randn(6, 10, generator=torch.Generator().manual_seed(1))
    ours, theirs = (weight.clone().requires_grad_() for _ in range(2))
    one = Muon([{"params": [ours], "orthogonal": True, "weight_decay": 0.1}], lr=0.02, fused=True)
    other = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for seed in range(3):
        gradient = torch.randn(6, 10, generator=torch.Generator().manual_seed(10 + seed))
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        one.step()
        other.step()
    assert torch.allclose(ours, theirs, atol=2e-3)  # torch computes in bfloat16
    before = ours.detach().clone()
    one.found_inf = torch.ones(())
    ours.grad = torch.full_like(ours, torch.nan)
    one.step()
    assert torch.equal(ours, before)
    assert torch.isfinite(one.state[ours]["exp_avg"]).all()


def test_a_killed_run_with_muon_ends_with_the_same_bits(tmp_path):
    config = tiny_run(text_file(tmp_path), optimizer="muon")
    whole = train(config, tmp_path / "whole", quiet=True)

    def die(step: int) -> None:
        if step == 6:
            raise _Killed

    with pytest.raises(_Killed):
        train(config, tmp_path / "killed", quiet=True, on_step=die)
    assert resume(tmp_path / "killed", quiet=True).sha256 == whole.sha256
    assert train(tiny_run(text_file(tmp_path)), tmp_path / "adamw", quiet=True).sha256 != whole.sha256
    assert whole.loss < 2.9
