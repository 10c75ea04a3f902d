"""The plan of a call is plain data: a process that has the model and pages computes the same bits from it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine import plan_worker
from engine.small import finish, loop, model, random_weights, request, with_adapters
from ops.random_adapters import random_adapter

from glassloop.decode.diffusion import Diffusion
from glassloop.decode.sampling import Sampling
from glassloop.diffuse.write import DiffusionRequest
from glassloop.engine.call_plan import CallPlan
from glassloop.engine.loop import Loop
from glassloop.engine.request import Request
from glassloop.engine.tasks.masked import Mask
from glassloop.ops.native.ops import NativeOps
from glassloop.record.origin import ByMasks

PAGES = 13


class Recorded:
    """The plans of a loop, pickled when they were launched, and the logits that it computed."""

    def __init__(self, engine: Loop) -> None:
        self.plans: list[bytes] = []
        self.logits: list[np.ndarray] = []
        self._launch = engine._verbs.launch
        engine._verbs.launch = self.launch  # type: ignore[method-assign]

    def launch(self, call: Any, plan: CallPlan) -> Any:
        self.plans.append(pickle.dumps(plan))
        launched = self._launch(call, plan)
        self.logits.append(np.array(launched.results))
        return launched


def _requests(rng: np.random.Generator) -> list[Request]:
    shared = rng.integers(0, 256, 45).tolist()
    options: list[dict[str, Any]] = [
        {"n": 3, "temperature": 0.9},
        {"beam_width": 3},
        {"temperature": 0.0, "prompt_logprobs": 1},
        {"adapter": "one", "temperature": 0.7},
        {"temperature": 0.8, "repetition_penalty": 1.2},
    ]
    requests = [
        request(
            shared + rng.integers(0, 256, int(rng.integers(1, 40))).tolist(),
            Sampling(max_tokens=30, seed=number, ignore_eos=True, **each),
        )
        for number, each in enumerate(options)
    ]
    plain = request(shared, Sampling(max_tokens=24, seed=9, ignore_eos=True))
    filling = Diffusion(block=8, threshold=0.5)
    plain.runs[0].origin = ByMasks(filling.to_dict())
    masked = DiffusionRequest(
        plain.prompt_ids,
        plain.sampling,
        plain.runs,
        built=plain.built,
        options=filling,
        mask=Mask(0, 2),
    )
    return [*requests, masked]


@pytest.mark.parametrize("window", [None, 40])
def test_another_process_computes_the_same_bits_from_plans(window, tmp_path, monkeypatch):
    """Samples, beams, scored prompts, adapters, masks and drafts in little room: tasks are preempted, pages
    are evicted, and shared pages are copied."""
    monkeypatch.setattr(NativeOps, "step_rows", 40)
    small, rng = with_adapters(model(window)), np.random.default_rng(3)
    engine = loop(small, PAGES)
    recorded = Recorded(engine)
    runs = finish(engine, *_requests(rng))
    assert all(run.error is None for run in runs)
    plans = [pickle.loads(data) for data in recorded.plans]
    assert engine.tree.evicted and sum(run.timings.preempted for run in runs)
    assert any(plan.copies for plan in plans) and any(plan.batch.reach for plan in plans)
    assert any(any(plan.batch.adapters) for plan in plans) and any(
        len(plan.batch.spans) > 3 for plan in plans
    )

    rng = np.random.default_rng(4)  # as `with_adapters` does
    adapters = [random_adapter(rng, small.config, name) for name in ("one", "two")]
    described = (small.config, random_weights(small.config), adapters, PAGES * small.page_bytes)
    files = [tmp_path / name for name in ("model", "plans", "results")]
    files[0].write_bytes(pickle.dumps(described))
    files[1].write_bytes(pickle.dumps(recorded.plans))
    worker = Path(plan_worker.__file__)
    subprocess.run([sys.executable, str(worker), *map(str, files)], check=True)
    results = pickle.loads(files[2].read_bytes())
    assert len(results) == len(recorded.logits) > 40
    for theirs, ours in zip(results, recorded.logits, strict=True):
        assert theirs.dtype == ours.dtype and theirs.tobytes() == ours.tobytes()


def test_a_plan_has_plain_values_only():
    engine = loop(model(None))
    engine.add(request([65, 66, 67], Sampling(max_tokens=4, seed=1)))
    (call,) = engine.scheduler.plan()
    plan = call.plan()
    assert plan.batch.tokens == [65, 66, 67] and plan.batch.wanted == [2] and not plan.copies
    assert [span.pages.dtype for span in plan.batch.spans] == [np.int32] and plan.batch.after is None
    assert len(plan.batch.spans) == len(call.works)  # the tasks are beside it, by index
    with pytest.raises(FrozenInstanceError):
        plan.batch = plan.batch  # type: ignore[misc]
