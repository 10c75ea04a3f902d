"""The sampling settings of a model: where they come from, and which options of a call they replace."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from hostile.tiny import TEMPLATE, tiny_gguf, write_folder, write_tiny

from glassloop import LLM, Sampling
from glassloop.decode.defaults import non_default, resolve, split_options, with_defaults
from glassloop.errors import GlassloopError, SamplingError, TextError
from glassloop.model.registry import CATALOG, DEFAULT_MODEL

MODEL = Sampling(temperature=0.3, top_p=0.8, repetition_penalty=1.2)


def load(path: Path) -> LLM:
    return LLM(str(path), kv_memory="4MB")


def folder_with(path: Path, settings: object) -> Path:
    folder = write_folder(path)
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return folder


# ── from the files ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_folder_has_them_in_its_generation_config(tmp_path):
    settings = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": None}
    settings |= {"repetition_penalty": 1.05, "max_new_tokens": 7, "num_beams": 4}
    llm = load(folder_with(tmp_path / "m", settings))
    expected = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05}
    assert non_default(llm.default_sampling) == expected
    assert llm.generate("hello", seed=1).sampling == Sampling(seed=1, **expected)


def test_do_sample_false_is_greedy(tmp_path):
    llm = load(folder_with(tmp_path / "m", {"do_sample": False, "temperature": 0.6}))
    assert llm.default_sampling == Sampling(temperature=0)


def test_a_gguf_file_has_them_in_its_metadata(tmp_path):
    keys = {"temp": 0.7, "top_k": 40, "top_p": 0.9, "penalty_repeat": 1.1, "mirostat": 2, "sequence": "kp"}
    file = tiny_gguf().with_metadata({f"general.sampling.{key}": value for key, value in keys.items()})
    (tmp_path / "m.gguf").write_bytes(file.to_bytes())
    expected = {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.1}
    assert non_default(load(tmp_path / "m.gguf").default_sampling) == expected


def test_a_model_without_settings_is_sampled_plainly(tmp_path):
    assert load(write_tiny(tmp_path / "m.gguf")).default_sampling == Sampling()


@pytest.mark.parametrize(
    "value", ["NaN", "-Infinity", "-1", "1e9", '"0.7"', "[0.7]", "{}", "true", "9" * 4000]
)
@pytest.mark.parametrize("name", ["temperature", "top_k", "repetition_penalty"])
def test_a_hostile_value_is_ignored_with_a_warning(tmp_path, caplog, name, value):
    folder = write_folder(tmp_path / "m")
    (folder / "generation_config.json").write_text(f'{{"top_p": 0.9, "{name}": {value}}}')
    with caplog.at_level(logging.WARNING):
        assert load(folder).default_sampling == Sampling(top_p=0.9)
    (record,) = caplog.records
    assert f"{folder}: {name} is " in record.message and "which is ignored; a" in record.message
    assert len(record.message) < 400


def test_a_hostile_value_in_a_gguf_file_is_ignored_with_a_warning(tmp_path, caplog):
    keys = {"temp": float("nan"), "top_k": [1, 2], "top_p": "much", "min_p": 0.1, "penalty_repeat": -1.0}
    file = tiny_gguf().with_metadata({f"general.sampling.{key}": value for key, value in keys.items()})
    (tmp_path / "m.gguf").write_bytes(file.to_bytes())
    with caplog.at_level(logging.WARNING):
        assert load(tmp_path / "m.gguf").default_sampling == Sampling(min_p=0.1)
    assert len(caplog.records) == 4 and "general.sampling.top_p is 'much'" in caplog.text


def test_a_generation_config_that_is_not_json_is_refused(tmp_path):
    folder = write_folder(tmp_path / "m")
    (folder / "generation_config.json").write_text("{oops")
    with pytest.raises(GlassloopError, match=r"generation_config\.json: is not JSON"):
        load(folder)


def test_the_settings_of_the_catalog_are_options_of_sampling():
    for entry in CATALOG.values():
        settings = dict(entry.sampling or {})
        assert non_default(Sampling.from_dict(settings)) == settings, entry.name


def test_the_default_model_does_not_babble():
    """Its own distribution has a long tail: at temperature 1, a fifth of the tokens of an answer come from
    below 1 %, and a text of them makes no sense."""
    with LLM(kv_memory="200MB") as llm:
        assert non_default(llm.default_sampling) == dict(CATALOG[DEFAULT_MODEL].sampling)
        questions = ("Say hi.", "How many moons does Mars have?", "Write one sentence about the sea.")
        prompts = [llm.tokenizer.encode_chat([{"role": "user", "content": text}]) for text in questions]
        shares = {}
        for name, options in {"model": {}, "plain": {"temperature": 1}}.items():
            tokens = [
                token
                for run in llm.generate(prompts * 2, seed=1, max_tokens=24, **options)
                for token in run.tokens
            ]
            shares[name] = sum(token.raw_logprob < -4.6 for token in tokens) / len(tokens)
        assert shares["model"] < 0.05 < 0.1 < shares["plain"]
        hello = llm.chat([{"role": "user", "content": "Say hi."}], seed=3, max_tokens=8)
        assert hello.sampling.temperature == 0.5 and hello.messages is not None


# ── in a call ──────────────────────────────────────────────────────────────────────────────────────────────


def test_only_options_that_are_not_given_come_from_the_model():
    made = with_defaults({"temperature": 1.5, "max_tokens": 7}, MODEL)
    assert made == Sampling(temperature=1.5, top_p=0.8, repetition_penalty=1.2, max_tokens=7)
    assert with_defaults({"temperature": 1.0, "top_p": 1, "repetition_penalty": 1}, MODEL) == Sampling()
    assert with_defaults({}, MODEL) == MODEL


def test_a_beam_search_takes_no_sampling_settings_from_the_model():
    assert with_defaults({"beam_width": 3}, MODEL) == Sampling(beam_width=3)
    assert with_defaults({"beam_width": 3, "temperature": 0.3}, MODEL) == Sampling(
        beam_width=3, temperature=0.3
    )
    with pytest.raises(SamplingError, match="beam_width is 'x'"):
        with_defaults({"beam_width": "x"}, MODEL)


def test_an_own_order_of_stages_takes_the_settings_of_its_stages(tmp_path):
    made = with_defaults({"stages": ["min_p", "temperature"]}, MODEL)
    assert made == Sampling(stages=("min_p", "temperature"), temperature=0.3)
    assert with_defaults({"stages": None}, MODEL) == MODEL
    ngrams = Sampling(no_repeat_ngram_size=3, xtc_probability=0.5)
    assert with_defaults({"stages": ["xtc"]}, ngrams) == Sampling(stages=("xtc",), xtc_probability=0.5)
    llm = load(write_tiny(tmp_path / "m.gguf"))
    llm.default_sampling = MODEL
    assert llm.generate("hello", stages=["top_k"], top_k=2, max_tokens=1).tokens


def test_a_sampling_is_used_as_it_is_and_keywords_replace_its_fields():
    assert resolve(Sampling(), {}, MODEL) == Sampling()
    assert resolve(Sampling(top_k=3), {"seed": 1}, MODEL) == Sampling(top_k=3, seed=1)
    assert resolve(None, {"seed": 1}, MODEL) == Sampling(
        temperature=0.3, top_p=0.8, repetition_penalty=1.2, seed=1
    )


def test_calls_take_options_as_keywords(tmp_path):
    llm = load(write_tiny(tmp_path / "m.gguf"))
    llm.default_sampling = Sampling(temperature=0.5, max_tokens=3)
    one = llm.generate("hello", temperature=0, ignore_eos=True)
    assert one.sampling == Sampling(temperature=0, max_tokens=3, ignore_eos=True) and len(one.tokens) == 3
    first, second = llm.generate(["hello", "you"], seed=4)
    assert first.sampling.temperature == second.sampling.temperature == 0.5
    assert first.seed == 4 != second.seed
    each = llm.generate(["hello", "you"], [Sampling(seed=1), Sampling(seed=2)], max_tokens=2)
    assert [run.sampling for run in each] == [Sampling(seed=1, max_tokens=2), Sampling(seed=2, max_tokens=2)]
    assert {run.sampling.min_p for run in llm.generate_iter(["hello", "you"], min_p=0.1)} == {0.1}
    assert len(list(llm.stream("hello", ignore_eos=True))) == 3
    chat = llm.chat([{"role": "user", "content": "hello"}], seed=2, max_tokens=1, add_generation_prompt=True)
    assert chat.sampling == Sampling(temperature=0.5, seed=2, max_tokens=1)


MESSAGES = [{"role": "user", "content": "hello"}]


def test_a_keyword_of_chat_that_the_template_does_not_have_is_refused(tmp_path):
    llm = load(write_tiny(tmp_path / "plain.gguf"))
    for name in ("enable_thinking", "max_new_words", "role", "content"):
        with pytest.raises(SamplingError, match=f"{name} is neither an option nor a variable") as raised:
            llm.chat(MESSAGES, **{name: 2})
        assert raised.value.field == name
        with pytest.raises(TextError, match=f"template.{name} is not a variable of the chat template"):
            llm.chat(MESSAGES, template={name: 2})
    with pytest.raises(SamplingError, match=r"max_new_tokens .* did you mean max_tokens"):
        llm.chat(MESSAGES, max_new_tokens=2)
    with pytest.raises(TextError, match=r"template\.messages is not a variable"):
        llm.chat(MESSAGES, template={"messages": []})


def test_variables_of_the_template_act_as_keywords_and_in_template(tmp_path):
    thinking = TEMPLATE + "{% if enable_thinking is defined and not enable_thinking %}I am sure{% endif %}"
    llm = load(write_tiny(tmp_path / "thinking.gguf", thinking))
    plain, first, second = (
        llm.chat(MESSAGES, seed=1, max_tokens=1, **given).prompt_ids
        for given in ({}, {"enable_thinking": False}, {"template": {"enable_thinking": False}})
    )
    assert first == second != plain
    open_talk = [*MESSAGES, {"role": "assistant", "content": "you"}]
    continued = llm.chat(open_talk, max_tokens=1, template={"continue_final": True})
    assert continued.prompt_ids == llm.tokenizer.encode_chat(open_talk, continue_final=True)


def test_a_chat_has_a_priority(tmp_path):
    llm = load(write_tiny(tmp_path / "m.gguf"))
    assert llm.prepare_chat(MESSAGES, priority=3).priority == 3
    assert llm.chat(MESSAGES, max_tokens=1, priority=3).tokens


def test_the_same_luck_is_for_lists(tmp_path):
    llm = load(write_tiny(tmp_path / "m.gguf"))
    with pytest.raises(GlassloopError, match="same_luck is given for one prompt; a list of prompts is"):
        llm.generate("hello", same_luck=True)


def test_a_misspelt_option_is_an_error_with_the_nearest_name(tmp_path):
    llm = load(write_tiny(tmp_path / "m.gguf"))
    message = "temprature is not a sampling option; did you mean temperature?"
    for call in (
        lambda: llm.generate("hello", temprature=0),
        lambda: llm.generate("hello", Sampling(), temprature=0),
        lambda: llm.generate(["hello"], temprature=0),
        lambda: llm.stream("hello", temprature=0),
        lambda: llm.chat([{"role": "user", "content": "hello"}], temprature=0),
    ):
        with pytest.raises(SamplingError, match=message):
            call()
    with pytest.raises(SamplingError, match=r"sampling is .*; Sampling\(temperature=0\), or temperature=0"):
        llm.generate("hello", {"temperature": 0})  # type: ignore[call-overload]
    assert split_options({"enable_thinking": False, "seed": 1}) == ({"seed": 1}, {"enable_thinking": False})
