"""Choosing a token: greedy, or drawn with the right probabilities, from the seed and the position alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassloop.decode.choose import choose, log_softmax
from glassloop.decode.luck import _mix, hashes, luck
from glassloop.errors import ModelError

_LOGITS = st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=40)


@given(_LOGITS)
def test_temperature_zero_is_the_argmax_with_ties_to_the_lower_id(logits):
    row = np.array(logits, np.float32)
    assert choose(row, 0, seed=1, position=5).id == int(np.flatnonzero(row == row.max())[0])


@given(_LOGITS, st.floats(0.05, 20))
def test_probabilities_sum_to_one(logits, temperature):
    row = np.array(logits, np.float64)
    assert np.exp(log_softmax(row / temperature)).sum() == pytest.approx(1, abs=1e-12)


@given(_LOGITS, st.integers(0, 2**64 - 1), st.integers(0, 2**20))
def test_the_seed_and_the_position_decide(logits, seed, position):
    row = np.array(logits, np.float32)
    assert choose(row, 1.0, seed, position) == choose(row.copy(), 1.0, seed, position)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_with_their_probabilities(temperature):
    """Chi-squared over 20,000 positions; 20.5 is passed by chance once in a thousand with 5 degrees."""
    row = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.04, 0.01], np.float32))
    expected = np.exp(log_softmax(row.astype(np.float64) / temperature)) * 20_000
    drawn = [choose(row, temperature, seed=11, position=position).id for position in range(20_000)]
    observed = np.bincount(drawn, minlength=len(row))
    assert ((observed - expected) ** 2 / expected).sum() < 20.5


def test_luck_has_the_moments_of_gumbel_noise():
    noise = np.concatenate([luck(3, 0, position, np.arange(1000)) for position in range(200)])
    assert noise.mean() == pytest.approx(0.5772, abs=0.01)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.02)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32), st.integers(0, 2**20), st.integers(0, 2**18))
def test_the_hash_on_arrays_equals_its_definition_on_whole_numbers(seed, salt, position, token):
    key = 0
    for part in (seed, salt, position):
        key = _mix((key + 0x9E3779B97F4A7C15 + part) % 2**64)
    expected = _mix((key + (token + 1) * 0x9E3779B97F4A7C15) % 2**64)
    assert int(hashes(seed, salt, position, np.array([token]))[0]) == expected


def test_logits_that_are_not_numbers_are_an_error():
    with pytest.raises(ModelError, match="position 9"):
        choose(np.array([0.0, np.nan], np.float32), 1.0, 0, 9)
