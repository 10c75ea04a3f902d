"""Intervals and paired tests, against definitions written out and against enumeration."""

from __future__ import annotations

from itertools import product
from math import sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop.evaluate.analyse import ItemOutcome
from glassloop.evaluate.report import ReportRow, comparisons, figures_of, plot, row_of, table
from glassloop.util.statistics import Z_95, mcnemar, sign_test, wilson


@settings(deadline=None)
@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_ends_of_wilsons_interval_solve_its_equation(counts: tuple[int, int]) -> None:
    """The ends are the shares at which the observed share lies just 1.96 standard errors away."""
    successes, trials = counts
    share, low, high = wilson(successes, trials)
    assert 0 <= low <= share <= high <= 1
    for end in (low, high):
        if 0 < end < 1:
            assert abs(share - end) == pytest.approx(Z_95 * sqrt(end * (1 - end) / trials), rel=1e-6)


def test_known_intervals() -> None:
    assert [round(value, 4) for value in wilson(10, 100)] == [0.1, 0.0552, 0.1744]  # as statsmodels has it
    assert wilson(0, 0) == (0, 0, 1) and wilson(0, 10).low == 0 and wilson(10, 10).high == 1


@pytest.mark.parametrize(("one", "other"), [(0, 0), (1, 0), (3, 3), (1, 7), (0, 10), (5, 6)])
def test_the_exact_test_counts_all_outcomes(one: int, other: int) -> None:
    """p is the share of all ways that coins can fall which are at least as uneven."""
    trials = one + other
    ways = [sum(way) for way in product((0, 1), repeat=trials)]
    uneven = sum(abs(2 * heads - trials) >= abs(one - other) for heads in ways)
    assert sign_test(one, other) == pytest.approx(uneven / len(ways))


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40))
def test_pairs_are_counted_and_the_test_is_symmetric(pairs: list[tuple[bool, bool]]) -> None:
    first, second = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    one, other = mcnemar(first, second), mcnemar(second, first)
    assert one.p == other.p and one.difference == -other.difference
    assert (one.first_only, one.second_only) == (pairs.count((True, False)), pairs.count((False, True)))
    assert one.difference == pytest.approx((sum(second) - sum(first)) / max(len(pairs), 1))


def test_many_items_do_not_overflow() -> None:
    assert 0 < sign_test(400, 600) < 1e-9 and sign_test(5000, 5000) == 1


def test_the_parts_of_a_task_have_figures_of_their_own() -> None:
    results = {
        "one": {"a": ItemOutcome(True, 3), "b": ItemOutcome(False, 3), "c": ItemOutcome(True, 3)},
        "two": {"a": ItemOutcome(True, 3), "b": ItemOutcome(True, 3), "c": ItemOutcome(False, 3)},
    }
    rows = [row_of(method, found, None) for method, found in results.items()]
    figures = figures_of("t", "m", rows, results, {"a": "x", "b": "x", "c": "y"})
    assert [made["parts"]["x"]["correct"] for made in figures.json] == [1, 2]
    assert figures.json[1]["parts"]["y"] == {"accuracy": 0.0, "items": 1, "correct": 0}
    assert figures.text.splitlines()[-2:] == [
        "x         2   50.0%  100.0%",
        "y         1  100.0%    0.0%",
    ]
    alone = figures_of("t", "m", rows, results, dict.fromkeys("abc", "x"))
    assert "part" not in alone.text and "parts" not in alone.json[0]


def test_a_plot_and_a_table_of_anything() -> None:
    rows = [
        ReportRow("a<b:1", 0.0, 0.0, 0.1, 10, 0, 0, 0.0, None),
        ReportRow("vote:8", 0.5, 0.4, 0.6, 10, 5, 100, 10.0, 1.5),
        ReportRow("vote:16", 1.0, 0.7, 1.0, 10, 10, 200, 20.0, 3.0),
    ]
    svg = plot("a & b", rows)
    assert svg.count("<circle") == 3 and "a &amp; b" in svg and "NaN" not in svg
    assert plot("nothing", []).endswith("</svg>\n")
    assert "100.0%" in table(rows) and "McNemar" in comparisons([("x", "y", mcnemar([True], [False]))])
