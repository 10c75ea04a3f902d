"""Errors name the field that was wrong, for programs as well as for people."""

from __future__ import annotations

import pickle
from dataclasses import fields

import pytest

from glassloop import LLM, Sampling
from glassloop.decode.limits import check_size
from glassloop.errors import GlassloopError, LengthError, SamplingError
from glassloop.util.shown import shown


@pytest.mark.parametrize("name", [field.name for field in fields(Sampling)])
def test_every_option_names_itself(name):
    with pytest.raises(SamplingError) as caught:
        Sampling(**{name: object()})
    assert caught.value.field == name
    assert caught.value.expected and caught.value.expected in str(caught.value)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"bad_words": [[1, -1]]}, "bad_words[0][1]"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"5": "x"}}, "logit_bias"),
        ({"temprature": 1}, "temprature"),
        ({"regex": "a", "choice": ["a"]}, "regex"),
        ({"n": 3, "beam_width": 2}, "n"),
        ({"min_tokens": 300}, "min_tokens"),
    ],
    ids=str,
)
def test_the_place_inside_an_option_is_named(options, field):
    with pytest.raises(SamplingError) as caught:
        Sampling.from_dict(options)
    assert caught.value.field == field


def test_sizes_name_their_field():
    with pytest.raises(SamplingError) as caught:
        check_size({"stop": ["x", "y" * 5000]})
    assert caught.value.field == "stop[1]" and caught.value.expected == "at most 4096 characters"


def test_prompts_and_forks_name_what_is_wrong(llm):
    with pytest.raises(LengthError) as too_long:
        llm.generate([1] * llm.config.context)
    assert too_long.value.field == "prompt"
    with pytest.raises(GlassloopError) as outside:
        llm.generate([1, llm.config.vocab_size])
    assert outside.value.field == "prompt[1]"
    run = llm.generate([1], Sampling(max_tokens=1))
    with pytest.raises(GlassloopError) as place:
        run.fork(5)
    assert place.value.field == "at"
    with pytest.raises(GlassloopError) as content:
        llm.tokenizer.chat_template.render([{"role": "user"}])
    assert content.value.field == "messages[0].content"


def test_an_error_survives_pickling():
    error = pickle.loads(pickle.dumps(SamplingError("n is 0", field="n", expected="1")))
    assert (str(error), error.field, error.expected) == ("n is 0", "n", "1")


@pytest.fixture(scope="module")
def llm():
    with LLM(kv_memory="100MB") as made:
        yield made


def test_a_value_in_a_message_is_short_however_it_is_built():
    deep: list = ["x"]
    for _ in range(60):
        deep = [deep] * 9
    assert shown(deep).startswith("[[[…]") and len(shown(deep)) <= 80
    told = {"a": deep}
    told["b"] = told
    assert shown(told).startswith("{'a': [[…]")
    for value in ([], {}, (), (1,), [1, [2]], {"a": {"b": 1}}, [None, "x", 1.5], {1}):
        assert shown(value) == repr(value)
