"""The vocabulary functions in C give what their NumPy definitions give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ops.test_native import instructions  # noqa: F401  (a fixture)

from glassloop.ops import vocabulary
from glassloop.ops.native import vocabulary as native

_LOGIT = st.floats(-100, 100, width=32) | st.just(-np.inf) | st.sampled_from([0.0, 1.0, 1.5])
_ROWS = st.lists(_LOGIT, min_size=1, max_size=200).map(lambda row: np.array(row, np.float32))


@given(row=_ROWS, top=st.integers(1, 220))
def test_summaries(row, top):
    expected, made = vocabulary.summarize(row, top), native.summarize(row, top)
    assert made.ids.tolist() == expected.ids.tolist()
    assert made.logits.tolist() == expected.logits.tolist()
    assert made.log_sum_exp == pytest.approx(expected.log_sum_exp, abs=1e-11)
    assert made.entropy == pytest.approx(expected.entropy, abs=1e-11)
    assert made.finite


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@given(row=_ROWS, data=st.data())
def test_rows_that_are_not_numbers(wrong, row, data):
    row[data.draw(st.integers(0, len(row) - 1))] = wrong
    assert not native.summarize(row, 3).finite and not vocabulary.summarize(row, 3).finite


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("size", [1, 7, 49152, 262144])
def test_whole_vocabularies(size):
    row = (np.random.default_rng(size).standard_normal(size) * 4).astype(np.float32)
    expected, made = vocabulary.summarize(row, 64), native.summarize(row, 64)
    assert made.ids.tolist() == expected.ids.tolist()
    assert made.log_sum_exp == pytest.approx(expected.log_sum_exp, abs=1e-11)
    assert made.entropy == pytest.approx(expected.entropy, abs=1e-11)
    for scale in (0.3, 1.0, 1 / 0.05):
        assert native.log_sum_exp(row, scale) == pytest.approx(vocabulary.log_sum_exp(row, scale), rel=1e-12)


@given(row=_ROWS, data=st.data())
def test_ranks(row, data):
    token = data.draw(st.integers(0, len(row) - 1))
    assert native.rank_of(row, token) == vocabulary.rank_of(row, token)


@given(st.integers(0, 2**64 - 1), st.integers(0, 5000), st.integers(0, 2**64 - 1))
def test_lucky_ids(key, count, threshold):
    assert (
        native.lucky_ids(key, count, threshold).tolist()
        == vocabulary.lucky_ids(key, count, threshold).tolist()
    )


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**31 - 1), max_size=50))
def test_luck_is_the_same_to_the_last_bit(key, ids):
    made, expected = native.luck_of(key, np.array(ids, int)), vocabulary.luck_of(key, np.array(ids, int))
    assert made.tobytes() == expected.tobytes()
