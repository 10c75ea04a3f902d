"""Sampling options are checked where they enter, by name."""

from __future__ import annotations

import pytest

from glassloop import Sampling, SamplingError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", "hot"),
        ("temperature", True),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", 1.5),
        ("max_tokens", 0),
        ("max_tokens", 2.0),
        ("top_q", 1),
    ],
)
def test_an_error_names_the_field_and_the_value(name, value):
    with pytest.raises(SamplingError, match=name):
        Sampling.from_dict({name: value})


def test_good_options_pass():
    assert Sampling.from_dict({"temperature": 0, "seed": 2**64 - 1, "max_tokens": 1}).temperature == 0
