"""What a pass has to do, and the share of the limits that follows from it."""

from __future__ import annotations

import pytest

from bench.wall import (
    CHUNK,
    CONTEXT,
    STEPS,
    Cost,
    Speeds,
    Workload,
    decoding,
    prefilling,
    profile_table,
    set_cost,
)
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import DEFAULT_MODEL, fetch
from glassloop.ops.native import library
from glassloop.ops.native.ops import NativeOps

SPEEDS = Speeds(products=100.0, scaled=80.0, with_minimum=50.0, words=25.0, read=10.0)


def test_a_pass_is_limited_by_reading_or_by_arithmetic():
    assert Cost(scaled=80, with_minimum=100, bytes=1).seconds(SPEEDS) == pytest.approx(3.0)
    assert Cost(scaled=80, with_minimum=100, bytes=40).seconds(SPEEDS) == pytest.approx(4.0)
    assert Cost(scaled=80, with_minimum=100, attention=75, bytes=40).seconds(SPEEDS) == pytest.approx(6.0)


def test_shares_are_medians_of_the_rounds():
    slow = SPEEDS._replace(products=50.0, read=5.0)
    workload = Workload("w", [0] * 6, 1, lambda: iter([]), Cost(scaled=80, with_minimum=100, bytes=10))
    workload.rounds = [(3.6, SPEEDS), (7.2, slow), (4.5, SPEEDS)]
    result = workload.result()
    assert result["ms"] == 4500.0
    assert result["tokens_per_second"] == pytest.approx(1.3)
    assert result["of_int8_peak"] == 0.5  # of 0.5, 0.5 and 0.4
    assert result["of_limit"] == pytest.approx(0.667)  # of 0.83, 0.42 and 0.67


@pytest.fixture(scope="module")
def model():
    return ModelFiles(fetch(DEFAULT_MODEL)).transformer(NativeOps())


def test_the_cost_of_a_pass_is_that_of_the_matrices(model):
    """Q4_1 has minimums, the head is Q8_0 and multiplies two sets of codes."""
    lanes = library.library().gl_lanes()
    layers, head = 30 * (2 * 576 * 576 + 2 * 192 * 576 + 3 * 1536 * 576), 49152 * 576
    streams = decoding(model, list(range(100)), 3)
    set_cost(streams, model, lanes)
    attention = 3 * 2 * 30 * 9 * 64 * (CONTEXT + STEPS)
    assert streams.cost == Cost(3 * 2 * head, 3 * layers, attention, head * 34 // 32 + layers * 20 // 32)
    prompt = prefilling(model, list(range(100)), CHUNK + 8)
    set_cost(prompt, model, lanes)
    assert prompt.cost.attention == 2 * 30 * 9 * 64 * sum(range(1, CHUNK + 9))
    assert prompt.cost.with_minimum == (CHUNK + 8) * layers
    assert prompt.cost.scaled == 2 * 2 * head  # a row for each of the two chunks
    assert prompt.cost.bytes == 2 * streams.cost.bytes
    table = "\n".join(profile_table(prompt, model.ops.threads))
    assert "linear 1536 × 576" in table and "attend" in table
