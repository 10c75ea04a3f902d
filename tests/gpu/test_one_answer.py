"""On a GPU: the scenarios of `tests/engine/test_one_answer.py`. Every run is what the naive loop gives, bit
for bit, with steps that are launched ahead, drafts, samples, cancellations and preemptions."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from glassloop.ops.torch import has_device

if not has_device():
    pytest.skip("needs a GPU, torch and Triton", allow_module_level=True)

from engine.test_one_answer import scenario

SCENARIOS = int(os.environ.get("GLASSLOOP_GPU_SCENARIOS", "12"))


def test_every_run_is_what_the_naive_loop_gives_on_the_device(monkeypatch):
    happened: Counter[str] = Counter()
    for seed in range(SCENARIOS):
        happened += scenario(seed, monkeypatch, "torch")
        print(f"scenario {seed}: {dict(happened)}", flush=True)
    assert happened["steps ahead"] > 0 and happened["preempted runs"] > 0
