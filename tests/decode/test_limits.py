"""Options are measured before anything is built from them, and whatever they are, errors are ours."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np
import pytest
from hostile.strategies import NAMES, huge, options, values
from hostile.values import nested
from hypothesis import given
from hypothesis import strategies as st

from glassloop import Sampling, SamplingError
from glassloop.decode.decoder import Decoder
from glassloop.decode.limits import OptionLimits, check_size
from glassloop.decode.option import MOST
from glassloop.decode.stop import Loops
from glassloop.ops import choose_ops


@given(options())
def test_hostile_options_are_made_or_refused_in_one_line(given_options):
    for check in (check_size, Sampling.from_dict):
        try:
            check(given_options)
        except SamplingError as error:
            assert len(str(error)) < 1500 and "\n" not in str(error)
            str(error).encode()


@pytest.mark.parametrize("name", NAMES)
@given(value=values())
def test_a_value_that_is_taken_survives_json(name, value):
    try:
        sampling = Sampling.from_dict({name: value})
    except SamplingError as error:
        assert str(error).startswith(("a key of " + name, name)) or name in str(error)
        return
    assert Sampling.from_dict(json.loads(json.dumps(sampling.to_dict()))) == sampling


@pytest.mark.parametrize(
    ("given_options", "said"),
    [
        ({"stop": ["x"] * 65}, "stop has 65 entries; at most 64"),
        ({"stop": "x" * 4097}, "stop has 4097 characters; at most 4096"),
        ({"stop": ["a", "x" * 4097]}, r"stop\[1\] has 4097 characters; at most 4096"),
        ({"bad_words": "x" * 5000}, "bad_words has 5000 characters"),
        ({"bad_words": [[1]] * 1025}, "bad_words has 1025 entries"),
        ({"bad_words": [[1] * 10_000, [2] * 10_000]}, "bad_words has 20000 token ids; at most 16384"),
        ({"bad_words": ["x" * 4000] * 9}, "stop and bad_words has 36000 characters together; at most 32768"),
        ({"choice": ["x"] * 1025}, "choice has 1025 entries"),
        ({"choice": ["x" * 4000] * 40}, "the options have 160000 characters of text together"),
        ({"logit_bias": {str(i): 0 for i in range(1025)}}, "logit_bias has 1025 entries"),
        ({"allowed_token_ids": [1] * 40_000}, "allowed_token_ids has 40000 entries"),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids has 1025 entries"),
        ({"stages": ["top_k"] * 65}, "stages has 65 entries"),
        (
            {"stage_options": {"a": {"b": ["x"] * 4096}}},
            "stage_options has 41.. objects, lists, keys and val",
        ),
        ({"stage_options": {"a": {"b": "x" * 16_384}}}, "stage_options has 16386 characters; at most 16384"),
        ({"grammar": "x" * 100_001}, "grammar has 100001 characters; at most 100000"),
        ({"regex": "x" * 100_001}, "regex has 100001 characters"),
        ({"json_schema": "x" * 100_001}, "json_schema has 100001 characters"),
        ({"json_schema": {"enum": ["x"] * 20_001}}, "json_schema has 2000. objects, lists, keys and values"),
        ({"json_schema": {"const": "x" * 100_001}}, "json_schema has 100006 characters"),
        ({"json_schema": {"x" * 100_001: 1}}, "json_schema has 100001 characters"),
    ],
)
def test_what_is_too_large_is_an_error_that_names_it(given_options, said):
    with pytest.raises(SamplingError, match=said):
        check_size(given_options)


def test_a_deep_schema_is_measured_without_recursion():
    check_size({"json_schema": nested(9000, "object")}, replace(OptionLimits(), schema_values=10**6))
    with pytest.raises(SamplingError, match="json_schema has"):
        check_size({"json_schema": nested(50_000)})


def test_limits_of_a_list_have_its_name():
    names = {field.name for field in fields(OptionLimits)}
    assert {
        "stop",
        "bad_words",
        "choice",
        "logit_bias",
        "stop_token_ids",
        "allowed_token_ids",
        "stages",
    } <= names


# ── large numbers ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ops", ["reference", "native"])
@given(
    st.sampled_from(
        ["top_k", "no_repeat_ngram_size", "dry_allowed_length", "stop_on_repetition", "min_tokens"]
    ),
    huge() | st.sampled_from([MOST - 1, 10**6, 1000, 256]),
)
def test_a_large_whole_number_is_refused_or_works(ops, name, value):
    """One larger than the vocabulary or the text asks for nothing, and changes nothing."""
    try:
        sampling = Sampling.from_dict(
            {name: value, "max_tokens": MOST, "dry_multiplier": 1.0, "dry_base": 100}
        )
    except SamplingError as error:
        assert name in str(error) and not 0 <= value <= 256
        return
    tokens = [1, 2, 3] * 20
    logits = np.random.default_rng(3).normal(0, 1, 40).astype(np.float32)
    plain = Sampling(dry_multiplier=0.0 if name == "dry_allowed_length" else 1.0, dry_base=100)
    chosen = [
        Decoder(each, 40, 7, tokens, ops=choose_ops(ops).rows).choose(logits).id for each in (sampling, plain)
    ]
    assert chosen[0] == chosen[1]


@given(st.lists(st.integers(0, 1), max_size=40), st.sampled_from([100, 10**6, MOST]))
def test_a_loop_of_very_many_rounds_is_never_seen_early(tokens, rounds):
    loops = Loops(rounds)
    assert not any(loops.add(token) for token in tokens)


@given(st.integers(1, 256), st.floats(1, 100), st.floats(0, 100))
def test_the_dry_penalty_is_a_number(allowed, base, multiplier):
    logits = np.zeros(40, np.float32)
    options = {"dry_multiplier": multiplier, "dry_base": base, "dry_allowed_length": allowed}
    decoder = Decoder(Sampling(**options), 40, 7, [5, 6] * 200, tokenizer=None)
    with np.errstate(over="raise", invalid="raise"):
        _, left = decoder.run_stages(logits)
    assert np.isfinite(left.logits_of(np.arange(40))).all()


@pytest.mark.parametrize("penalty", [-10, 10])
def test_the_penalty_for_the_length_of_a_beam_neither_overflows_nor_vanishes(penalty):
    assert 0 < (1 << 24) ** Sampling(length_penalty=penalty).length_penalty < np.inf
    with pytest.raises(SamplingError, match="length_penalty"):
        Sampling(length_penalty=penalty * 2)
