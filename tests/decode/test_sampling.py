"""Sampling options are checked where they enter, by name, and survive JSON."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassloop import Sampling, SamplingError

DESIGN = (
    "temperature top_k top_p min_p typical_p top_n_sigma xtc_probability xtc_threshold epsilon_cutoff"
    " eta_cutoff mirostat_tau mirostat_eta"
    " repetition_penalty presence_penalty frequency_penalty no_repeat_ngram_size dry_multiplier"
    " dry_base dry_allowed_length logit_bias allowed_token_ids bad_words seed n max_tokens min_tokens stop"
    " stop_token_ids include_stop ignore_eos timeout stop_on_repetition revise revise_window revise_bits"
    " beam_width length_penalty early_stopping json_schema regex choice grammar diffusion adapter"
    " logprobs prompt_logprobs stages stage_options"
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
)
BAD = [
    ("stage_options", 5),
    ("stage_options", {"mine": 5}),
    ("stage_options", {"mine": {"words": {}}}),
    ("stage_options", {"mine": {"words": [[1]]}}),
    ("stage_options", {"mine": {"words": [1, float("nan")]}}),
    ("stage_options", {"mine": {"words": 1 << 63}}),
    ("stage_options", {"mine": {"words": "\ud800"}}),
    ("stage_options", {"mine": {7: 1}}),
    ("stage_options", {"": {}}),
    ("stage_options", {"a\nb": {}}),
    ("stage_options", {"x" * 81: {}}),
    ("temperature", -0.1),
    ("temperature", float("nan")),
    ("temperature", "hot"),
    ("temperature", True),
    ("temperature", None),
    ("temperature", 1e-9),
    ("seed", -1),
    ("seed", 2**64),
    ("seed", 1.5),
    ("max_tokens", 0),
    ("max_tokens", 2.0),
    ("top_k", -1),
    ("top_p", 0),
    ("top_p", 1.01),
    ("min_p", -0.1),
    ("typical_p", 0.0),
    ("epsilon_cutoff", 1.0),
    ("repetition_penalty", 0),
    ("xtc_threshold", 0),
    ("dry_base", 0.5),
    ("logit_bias", [1, 2]),
    ("logit_bias", {"a": 1}),
    ("logit_bias", {3: float("inf")}),
    ("logit_bias", {-1: 1.0}),
    ("allowed_token_ids", []),
    ("allowed_token_ids", [1.5]),
    ("bad_words", [""]),
    ("bad_words", [[]]),
    ("stop", [3]),
    ("stop", [""]),
    ("stop", ["\ud800"]),
    ("stop_token_ids", "x"),
    ("include_stop", 1),
    ("timeout", 0),
    ("stop_on_repetition", 1),
    ("json_schema", 3),
    ("json_schema", "{"),
    ("json_schema", {"x": object()}),
    ("regex", ""),
    ("choice", []),
    ("logprobs", 65),
    ("stages", 7),
]


def test_it_has_the_fields_of_the_design():
    assert {field.name for field in fields(Sampling)} == set(DESIGN.split())


@pytest.mark.parametrize(("name", "value"), BAD)
def test_an_error_names_the_field_the_value_and_what_is_allowed(name, value):
    with pytest.raises(SamplingError, match=rf"{name}.* is .*expected"):
        Sampling.from_dict({name: value})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("top_q", "did you mean top_"),
        ("max_new_tokens", "max_tokens"),
        ("zzz", "the options are temperature"),
    ],
)
def test_an_unknown_name_is_an_error_with_the_nearest_known_one(name, said):
    with pytest.raises(SamplingError, match=f"{name} is not a sampling option; .*{said}"):
        Sampling.from_dict({name: 1})
    with pytest.raises(SamplingError, match=f"{name} is not a sampling option; .*{said}") as raised:
        Sampling(**{name: 1})
    assert raised.value.field == name and raised.value.__context__ is None


def test_a_wrong_call_that_is_not_about_a_name_stays_a_type_error():
    with pytest.raises(TypeError, match="positional arguments"):
        Sampling(*[1] * 100)
    assert next(iter(inspect.signature(Sampling).parameters)) == "temperature"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"regex": "a", "choice": ["b"]}, "regex and choice are given"),
        ({"json_schema": {}, "ignore_eos": True}, "ignore_eos"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens is 9"),
    ],
)
def test_options_that_contradict_each_other_are_an_error(options, said):
    with pytest.raises(SamplingError, match=said):
        Sampling(**options)


def test_the_error_of_a_temperature_says_what_is_allowed():
    with pytest.raises(SamplingError, match=r"^temperature is 300\.0; a number from 0 to 100 is expected$"):
        Sampling(temperature=300.0)
    with pytest.raises(SamplingError, match=r"^temperature is -1; a number from 0 to 100 is expected$"):
        Sampling(temperature=-1)
    with pytest.raises(SamplingError, match="1e-09; 0, or a number from 1e-06 to 100, is expected"):
        Sampling(temperature=1e-9)


def test_values_get_their_normal_form():
    sampling = Sampling(
        temperature=np.float32(0.5), top_k=np.int64(3), stop="END", logit_bias={"7": 1}, json_schema="{}"
    )
    assert sampling == Sampling(temperature=0.5, top_k=3, stop=("END",), logit_bias={7: 1.0}, json_schema={})
    assert type(sampling.temperature) is float and type(sampling.top_k) is int
    assert hash(sampling) == hash(Sampling(temperature=0.5, top_k=3, stop=["END"]))


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.sampled_from([0, 0.5, 2]),
            "top_k": st.integers(0, 100),
            "top_p": st.floats(0.01, 1),
            "logit_bias": st.dictionaries(st.integers(0, 100), st.floats(-5, 5), max_size=3),
            "bad_words": st.lists(
                st.one_of(st.just("no"), st.lists(st.integers(0, 9), min_size=1)), max_size=3
            ),
            "stop": st.lists(st.sampled_from(["a", "\n\n", "✓"]), max_size=3),
            "seed": st.one_of(st.none(), st.integers(0, 2**64 - 1)),
            "json_schema": st.sampled_from([True, {}, {"type": "object", "required": ["a"]}]),
            "stage_options": st.dictionaries(
                st.text("ab_", min_size=1, max_size=3),
                st.dictionaries(
                    st.text("xy", min_size=1, max_size=2),
                    st.one_of(
                        SCALARS,
                        st.lists(SCALARS, max_size=3),
                    ),
                    max_size=2,
                ),
                max_size=2,
            ),
            "stages": st.permutations(
                ["temperature", "top_k", "top_p", "logit_bias", "bad_words", "grammar"]
            ),
        },
    )
)
def test_json_gives_the_same_options_back(options):
    sampling = Sampling.from_dict(options)
    assert Sampling.from_dict(json.loads(json.dumps(sampling.to_dict()))) == sampling


def test_options_of_stages_are_bounded_and_their_own():
    with pytest.raises(SamplingError, match=r"stage_options has 6.... characters as JSON; at most 65536"):
        Sampling(stage_options={"mine": {"words": "x" * 66_000}})
    given_options = {"mine": {"words": [1, 2]}}
    sampling = Sampling(stage_options=given_options)
    given_options["mine"]["words"].append(3)
    assert sampling.stage_options == {"mine": {"words": (1, 2)}}
    assert hash(sampling) == hash(Sampling())


def test_stages_that_a_change_leaves_out_lose_their_options():
    before = Sampling(stages=["default", "a", "b"], stage_options={"a": {"x": 1}, "b": {"y": 2}})
    assert before.changed({"stages": ["b"]}).stage_options == {"b": {"y": 2}}
    assert before.changed({"stages": "a"}).stage_options == {"a": {"x": 1}}
    assert before.changed({"stages": None}).stage_options == {}
    assert before.changed({"temperature": 2}).stage_options == before.stage_options
    assert before.changed({"stages": ["b"], "stage_options": {"a": {}}}).stage_options == {"a": {}}
    with pytest.raises(SamplingError, match="stages has 'default' more than once"):
        Sampling(stages=["default", "default"])
