"""examples/one_file.py computes what the engine computes with the reference op set, token for token."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from glassloop import LLM, Sampling, TextError
from glassloop.model.registry import fetch

_FILE = Path(__file__).parents[1] / "examples/one_file.py"
_TEXTS = st.lists(
    st.sampled_from(
        ["it", "'s", "'", " ", "  ", "\n", "\t", "12", "3 4", "Ärger", "日本", "½", "!?", "_", "a"]
    )
    | st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=3)
)


@pytest.fixture(scope="module")
def one_file():
    spec = spec_from_file_location("one_file", _FILE)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model(one_file):
    return one_file.Model(fetch("smollm2-135m-instruct"))


@pytest.fixture(scope="module")
def llm():
    with LLM("smollm2-135m-instruct", ops="reference") as made:
        yield made


@pytest.mark.parametrize(
    "prompt, options",
    [
        ("The capital of France is", {}),
        ("Once upon a time, in 1999,", {"temperature": 0.8, "seed": 3}),
        ("It's the sea's", {"temperature": 1.3, "top_k": 40, "top_p": 0.9, "seed": 11}),
        ("1 2 3 1 2 3 1 2", {"temperature": 0.3, "top_p": 0.95, "seed": 5}),
    ],
)
def test_its_tokens_are_the_engines(one_file, model, llm, prompt, options):
    plain = one_file.Options(**options, max_tokens=10)
    run = llm.generate(prompt, Sampling(**{"temperature": 0, "max_tokens": 10, **options}))
    ids = [token.id for token in run.tokens]
    assert list(one_file.generate(model, prompt, plain)) == ids
    assert list(one_file.generate_with_drafts(model, prompt, plain)) == ids
    assert "".join(one_file.stream(model, iter(ids))) == run.text


def test_its_beams_are_the_engines(one_file, model, llm):
    run = llm.generate("The capital of France is", Sampling(beam_width=3, max_tokens=8))
    options = one_file.Options(max_tokens=8)
    found = one_file.beam_search(model, "The capital of France is", 3, options)
    assert found == [token.id for token in run.tokens]


def test_it_streams_up_to_the_stop_text(one_file, model):
    ids = model.tokenizer.encode("One, two, three: ½ and ¾.")
    for stop in ("", "three", "o, t", "nothing"):
        parts = list(one_file.stream(model, iter(ids), stop))
        whole = "One, two, three: ½ and ¾."
        assert "".join(parts) == (whole.split(stop)[0] if stop else whole)


@given(_TEXTS.map("".join))
def test_its_tokenizer_is_the_engines(one_file, model, llm, text):
    assume("<" not in text)  # the engine also reads the names of special tokens
    try:
        expected = llm.tokenizer.encode(text)
    except TextError:  # the vocabulary lacks a byte
        with pytest.raises(KeyError):
            model.tokenizer.encode(text)
    else:
        assert model.tokenizer.encode(text) == expected
