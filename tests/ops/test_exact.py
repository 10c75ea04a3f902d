"""The functions of `ops/exact.py`: near the true values, and the same bits in NumPy and in C."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassloop.ops import exact

_ANY = st.floats(allow_nan=False)


@given(st.lists(st.floats(-800, 800) | _ANY, min_size=1, max_size=20))
def test_exp_is_near_and_has_one_answer(numbers):
    x = np.array(numbers)
    made = exact.exp(x)
    assert made.tobytes() == exact.exp_in_numpy(x).tobytes()
    inside = (x >= -708) & (x <= 709)
    np.testing.assert_allclose(made[inside], [math.exp(each) for each in x[inside]], rtol=1e-15)
    assert (made[x < -708] == 0).all() and (made[x > 709] == np.inf).all()


def test_exp_and_log_keep_nan():
    assert np.isnan(exact.exp(np.array([np.nan]))).all() and math.isnan(exact.log_of(math.nan))


@given(st.floats(2.0**-1022, allow_infinity=False))
def test_log_is_near(x):
    assert exact.log_of(x) == pytest.approx(math.log(x), rel=1e-15, abs=1e-16)


def test_log_at_the_ends():
    assert exact.log_of(0.0) == exact.log_of(5e-324) == -math.inf
    assert exact.log_of(math.inf) == math.inf and exact.log_of(1.0) == 0.0


@given(st.floats(-1e6, 1e6))
def test_sine_and_cosine_are_near(x):
    (sine,), (cosine,) = exact.sin_cos(np.array([x]))
    assert sine == pytest.approx(math.sin(x), abs=1e-11)
    assert cosine == pytest.approx(math.cos(x), abs=1e-11)
