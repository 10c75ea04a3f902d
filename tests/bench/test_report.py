"""Numbers into tables, on made-up measurements."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.accuracy import Distance, Result, log_softmax
from bench.documentation import BEGIN, END, replaced
from bench.report import WIDTH, data, ratios, report
from bench.rounds import FreshIds, Measured, rotated
from bench.statistics import quantile, ratio, summarize

MACHINE = {
    "processor": "A processor",
    "threads": 2,
    "memory_gb": 16,
    "system": "Linux",
    "python": "3.11",
    "date": "2026-01-01",
    "load_before": 0.0,
    "rounds": 3,
}


@pytest.fixture
def run() -> Measured:
    run = Measured("small", "small.gguf", 100_000_000)
    run.said = {
        name: {"version": "1", "details": "d" * 200} for name in ("glassloop", "llama.cpp", "openvino")
    }
    run.said["glassloop"]["isa"] = "avx2"
    run.absent = {"transformers": "its process died: Illegal instruction"}
    run.read_speed = [20e9, 10e9, 30e9]
    run.samples = {
        "decode-1": {
            "glassloop": [150.0, 100.0, 160.0],
            "llama.cpp": [100.0, 50.0, 100.0],
            "openvino": [None, None, None],
        },
        "cold-start": {"glassloop": [400.0], "llama.cpp": [800.0], "openvino": [500.0]},
    }
    return run


@given(st.lists(st.floats(0.1, 1e6), min_size=1))
def test_quantiles_are_numpys(values):
    ordered = sorted(values)
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        assert quantile(ordered, share) == pytest.approx(np.quantile(ordered, share))
    assert summarize(values).median == pytest.approx(np.median(values))


def test_what_was_not_measured_is_left_out():
    assert summarize([None, 3.0, None]).count == 1
    assert summarize([None]) is None and summarize([]) is None
    assert ratio([1.0, None, 9.0], [2.0, 5.0, None]) == 0.5
    assert ratio([None], [1.0]) is None


def test_a_disturbed_round_disturbs_both_sides_of_a_ratio():
    assert ratio([100.0, 10.0, 100.0], [50.0, 5.0, 50.0]) == 2.0


def test_the_best_peer_is_the_fastest_or_the_one_that_needs_least(run):
    assert ratios(run.samples["decode-1"], more_is_better=True) == {"llama.cpp": 1.6, "best": 1.6}
    cold = ratios(run.samples["cold-start"], more_is_better=False)
    assert cold == {"llama.cpp": 0.5, "openvino": 0.8, "best": 0.8}


def test_the_table_fits_and_tells_the_numbers(run):
    lines = report(MACHINE, [run], "small").splitlines()
    assert max(len(line) for line in lines) <= WIDTH
    assert any(
        line.startswith("1 to 3 rounds;") for line in lines
    )  # what was counted, not what was asked for
    row = next(line for line in lines if line.startswith("  decode alone  "))
    assert row.split()[2:] == ["150", "±10%", "100", "±12%", "—", "1.60×", "1.60×"]
    sets = next(line for line in lines if line.startswith("instruction set "))
    assert sets.split()[2:] == ["avx2", "—", "—"]
    assert any("20.0 GB/s" in line for line in lines) and any("glassloop 75%" in line for line in lines)
    assert "— transformers: its process died: Illegal instruction" in lines
    promise = next(line for line in lines if "decode alone, against the best peer" in line)
    assert promise.endswith("at least 1.2×, wanted 1.5×: wanted")


def test_a_run_that_holds_engines_to_an_instruction_set_says_so(run):
    held, free = (report({**MACHINE, "isa": isa}, [run], "small") for isa in ("avx2", None))
    assert "engines held to avx2" in held and "what we hold ourselves to" not in held
    assert "engines held to" not in free and "what we hold ourselves to" in free


def test_the_data_is_json_and_has_the_same_numbers(run):
    found = json.loads(json.dumps(data(MACHINE, [run], samples=True)))["models"]["small"]["workloads"]
    assert found["decode-1"]["median"] == {"glassloop": 150.0, "llama.cpp": 100.0}
    assert found["decode-1"]["samples"]["openvino"] == [None, None, None]


def test_every_engine_comes_first_in_its_turn():
    assert [rotated(["a", "b", "c"], by)[0] for by in range(4)] == ["a", "b", "c", "a"]


def test_pieces_of_text_begin_somewhere_else_each_time():
    ids = FreshIds(list(range(30_000)))
    firsts = [ids(1000)[0] for _ in range(300)]
    assert len(set(firsts)) == len(firsts)


def test_only_the_table_of_a_page_is_replaced():
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert replaced(page, "new") == f"before\n{BEGIN}\n```text\nnew\n```\n{END}\nafter\n"
    assert replaced(replaced(page, "one"), "two") == replaced(page, "two")
    with pytest.raises(ValueError, match="bench: begin"):
        replaced("no marks", "new")


def test_accuracy_is_its_definition():
    rng = np.random.default_rng(0)
    reference, logits = (rng.normal(size=(6, 50)).astype(np.float32) for _ in range(2))
    targets = [3, 1, 4, 1, 5]
    p = np.exp(reference) / np.exp(reference).sum(axis=1, keepdims=True)
    q = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    log_softmax(reference), log_softmax(logits)
    theirs, truth = Distance(), Distance()
    theirs.add(reference, logits, targets)
    truth.add(reference, reference, targets)
    result = Result.of(theirs, truth)
    assert result.divergence == pytest.approx((p * np.log(p / q)).sum(axis=1).mean(), rel=1e-4)
    assert result.agreement == (p.argmax(axis=1) == q.argmax(axis=1)).mean()
    perplexity = [float(np.exp(-np.log(x[range(5), targets]).mean())) for x in (q, p)]
    assert result.perplexity == pytest.approx(perplexity[0], rel=1e-4)
    assert result.perplexity_change == pytest.approx(perplexity[0] / perplexity[1] - 1, rel=1e-3)
    assert Result.of(truth, truth).divergence == 0.0
