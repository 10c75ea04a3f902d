"""What a request compiles is built once, before the engine's thread has it, and shared by its samples."""

from __future__ import annotations

import threading

import pytest
from engine.small import finish, loop, model, request

from glassloop import LLM, Sampling, SamplingError
from glassloop.decode.bad_words import BadWords
from glassloop.decode.grammar import Grammar
from glassloop.engine.request import Request
from glassloop.text.automaton import Automaton

OPTIONS = {"stop": ["STOP", "END"], "bad_words": ["never", [5, 6, 7]], "regex": "[ a-z]+", "max_tokens": 3}


@pytest.fixture(scope="module")
def llm():
    with LLM(kv_memory="100MB") as made:
        yield made


@pytest.fixture
def builders(monkeypatch):
    """The names of the threads that built something, by class."""
    seen: dict[str, list[str]] = {}
    for kind in (Automaton, BadWords, Grammar):

        def counted(self, *given, inner=kind.__init__, name=kind.__name__):
            seen.setdefault(name, []).append(threading.current_thread().name)
            inner(self, *given)

        monkeypatch.setattr(kind, "__init__", counted)
    return seen


def test_samples_share_what_is_built_on_the_callers_thread(llm, builders):
    here = threading.current_thread().name
    run = llm.generate("The sea", Sampling(n=4, seed=1, **OPTIONS))
    assert len(run.samples) == 4 and all(each.finish_reason == "length" for each in run.samples)
    assert builders == {"Automaton": [here] * 3, "BadWords": [here], "Grammar": [here]}
    builders.clear()
    llm.fork(run, 1, temperature=0.5)
    llm.explain(run, 1)
    llm.generate("The sea", Sampling(beam_width=3, **OPTIONS))
    assert {name for names in builders.values() for name in names} == {here}


def test_a_run_that_was_stopped_goes_on_with_what_is_built_before(llm, builders):
    # Long enough that it has not ended by itself when it is stopped.
    sampling = Sampling(seed=1, **{**OPTIONS, "max_tokens": 64})
    whole = llm.generate("The sea", sampling)
    part = llm.prepare("The sea", sampling)
    tokens = llm.follow(part)
    next(tokens), next(tokens)
    tokens.close()
    (run,) = part.runs
    run.finish_reason = run.stop_reason = None
    builders.clear()
    again = llm.prepare_rest(run)
    assert builders["Grammar"] == [threading.current_thread().name]
    for _ in llm.follow(again):
        pass
    assert run.token_ids == whole.token_ids


def test_what_was_checked_is_used_and_not_built_again(llm, builders):
    sampling = Sampling(**OPTIONS)
    compiled = llm.compile(sampling)
    builders.clear()
    requests = [llm.prepare(prompt, sampling, compiled=compiled) for prompt in ("The sea", "A hill")]
    for asked in requests:
        assert all(token.text is not None for token in llm.follow(asked))
    assert builders == {}


def test_options_that_cannot_be_compiled_are_their_own_requests_error(llm):
    good, bad = llm.generate(["a", "b"], [Sampling(max_tokens=1), Sampling(regex="(a")])
    assert good.error is None and isinstance(bad.error, SamplingError) and bad.finish_reason == "error"
    with pytest.raises(SamplingError, match="regex"):
        llm.compile(Sampling(regex="(a"))
    with pytest.raises(SamplingError, match="regex"):
        llm.generate("a", Sampling(regex="(a"))


@pytest.mark.parametrize("name", ["stop", "bad_words"])
def test_texts_without_any_bound_are_refused_before_they_are_built(llm, builders, name):
    with pytest.raises(SamplingError, match=f"{name} has 7500000 characters"):
        llm.compile(Sampling.from_dict({name: "ab" * 3_750_000}))
    assert builders == {}


def test_the_loop_compiles_nothing(builders):
    asked = request([65], Sampling(stop=["x"], max_tokens=2))
    bare = Request([65], asked.sampling, asked.runs)
    builders.clear()
    (run,) = finish(loop(model()), bare)
    assert run.finish_reason == "error" and "not compiled" in run.stop_reason and builders == {}
