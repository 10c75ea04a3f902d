"""On a GPU: the scenarios of `tests/engine/test_one_answer.py`. Every run is what the naive loop gives, bit
for bit, with steps that are launched ahead, drafts, samples, cancellations and preemptions.

The model is tiny, so compiling kernels takes longest. Every product has the same small tile, which is
compiled in a fraction of a second, and all kernels are launched early: tiles and launches change no bit,
which `test_bits.py` tests.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from importlib.util import find_spec
from time import monotonic

import pytest

from glassloop.ops.torch import has_device

if not has_device():
    pytest.skip("needs a GPU, torch and Triton", allow_module_level=True)

from engine.test_one_answer import scenario

from glassloop.ops.torch import launcher, products, row_tiles
from glassloop.ops.torch.device import default_device
from glassloop.ops.torch.tiles import Tile

SCENARIOS = int(os.environ.get("GLASSLOOP_GPU_SCENARIOS", "12"))
SECONDS = 40.0  # after which no further scenario begins, if all that has to happen has happened


def test_every_run_is_what_the_naive_loop_gives_on_the_device(monkeypatch):
    monkeypatch.setattr(default_device().tiles, "plain", lambda *_: Tile(16, 16, 32, False, 1, 2))
    monkeypatch.setattr(products, "WIDE", 1 << 30)
    monkeypatch.setattr(launcher, "_EARLY", 1 << 30)
    monkeypatch.setattr(row_tiles, "MANY", row_tiles.FEW)
    gc.freeze()  # capturing a graph collects garbage, among all objects of torch and Triton
    happened: Counter[str] = Counter()
    needed = ["steps ahead", "preempted runs", *(["grammars"] if find_spec("llguidance") else [])]
    began = monotonic()
    for seed in range(SCENARIOS):
        happened += scenario(seed, monkeypatch, "torch")
        print(f"{monotonic() - began:5.1f} s: scenario {seed}: {dict(happened)}", flush=True)
        enough = all(happened[each] > 0 for each in needed)
        if enough and "GLASSLOOP_GPU_SCENARIOS" not in os.environ and monotonic() - began > SECONDS:
            break
    gc.unfreeze()
    assert all(happened[each] > 0 for each in needed) or SCENARIOS < 4, happened
