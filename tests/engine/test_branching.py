"""Branches of runs: a fork, a rewound run and a continued one have the text, the records and the luck that
the same tokens would have if they had been written at once."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from engine.random_runs import PROMPT, SmallLLM, small_llm
from engine.small import finish, loop, model, random_weights, request, with_adapters
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop import LLM, GlassloopError, Run, Sampling, SamplingError
from glassloop.decode.luck import fork_salt
from glassloop.decode.stop import Pause
from glassloop.engine.request import Request
from glassloop.model.transformer import Transformer
from glassloop.ops.native.ops import NativeOps
from glassloop.record.store.store import Store


def text_of(run: Run) -> str:
    return b"".join([token.bytes for token in run.tokens]).decode("utf-8", "replace")


def completed(llm: LLM, asked: Request) -> Run:
    for _ in llm.follow(asked):
        pass
    return asked.runs[0]


def paused(llm: LLM, asked: Request, tokens: int) -> Run:
    asked.pause = Pause(tokens)
    asked.drafts = False
    return completed(llm, asked)


def rest(llm: LLM, run: Run) -> Run:
    asked = llm.prepare_rest(run)
    run.finish_reason, run.stop_reason, run.tail = None, None, ""
    return completed(llm, asked)


def with_two_adapters() -> SmallLLM:
    config = model().config
    return SmallLLM(transformer=with_adapters(Transformer(config, random_weights(config), NativeOps())))


# ── text ───────────────────────────────────────────────────────────────────────────────────────────────────


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 1000), st.integers(0, 20), st.lists(st.sampled_from("abcde "), max_size=3))
def test_the_text_of_a_fork_is_the_text_of_its_tokens_whatever_stops_it_has(seed, at, stops):
    """Over five characters, so that stop strings are everywhere."""
    llm, letters = small_llm(), list(b"abcde ")
    options = Sampling(seed=seed, max_tokens=20, allowed_token_ids=letters, stop=["ab", "ca"], min_tokens=6)
    run = llm.generate(PROMPT, options)
    at = min(at, len(run.tokens))
    pair = ["".join(stops)] if stops else []
    fork = run.fork(at, stop=pair, max_tokens=30, min_tokens=0, seed=seed + 1)
    whole = text_of(fork)
    ended_by_string = fork.finish_reason == "stop" and fork.stop_reason in pair
    assert fork.text == (whole[: -len(fork.stop_reason)] if ended_by_string else whole)
    new = text_of(fork)[at:]
    if ended_by_string:  # by one that ends in what was written after the fork
        assert len(fork.tokens) > at and whole.endswith(fork.stop_reason)
    else:
        assert len(fork.tokens) == 30 and not (pair and pair[0] in new)


def test_a_fork_behind_a_stop_string_goes_on():
    llm = small_llm()
    options = Sampling(seed=1, max_tokens=40, allowed_token_ids=list(b"abc"), stop=["ab"], temperature=9)
    run = llm.generate(PROMPT, options)
    assert (run.finish_reason, run.stop_reason) == ("stop", "ab") and "ab" not in run.text
    fork = run.fork(len(run.tokens))
    assert fork.text.startswith(run.text + "ab") and len(fork.tokens) > len(run.tokens)


def test_a_text_that_is_forced_is_taken_as_a_whole():
    """A stop string, a stop token or a repetition inside of it is what the caller wants there."""
    llm = small_llm()
    run = llm.generate(PROMPT, Sampling(seed=1, max_tokens=30, ignore_eos=True))
    edit = "one. two. aaaaaaaa three"
    for change in ({"stop": ["."]}, {"stop_token_ids": [ord(".")]}, {"stop_on_repetition": 3}):
        fork = run.fork(4, text=edit, max_tokens=60, **change)
        assert text_of(fork)[4:].startswith(edit), change
    ending = run.fork(4, text="the end.", stop=["."], max_tokens=60)
    assert ending.finish_reason == "stop" and ending.text.endswith("the end") and len(ending.tokens) == 12


# ── what is still to be done ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("change", [{"text": " and then it was over"}, {"token": ord("x")}])
@pytest.mark.parametrize("pause", [6, 8, 14, 40])
def test_an_edit_that_is_interrupted_and_continued_is_whole(change, pause, tmp_path):
    llm = small_llm()
    run = llm.generate(PROMPT, Sampling(seed=4, max_tokens=50, ignore_eos=True))
    whole = run.fork(5, **change)
    part = paused(llm, llm.prepare_fork(run, 5, **change), pause)
    assert len(part.tokens) == pause
    part.save(tmp_path / "part.glass")
    loaded = Run.load(tmp_path / "part.glass", llm=llm)
    assert loaded.pending == part.pending
    for each in (part, loaded):
        assert rest(llm, each).tokens == whole.tokens and not each.pending


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_prompt_whose_scoring_is_interrupted_is_scored_to_its_end(steps, monkeypatch):
    small = model()
    monkeypatch.setattr(small.ops, "step_rows", 16, raising=False)
    prompt = np.random.default_rng(1).integers(0, 256, 120).tolist()
    sampling = Sampling(seed=1, max_tokens=4, prompt_logprobs=2, logprobs=2)
    (whole,) = finish(loop(small), request(prompt, sampling))
    asked, engine = request(prompt, sampling), loop(small)
    engine.add(asked)
    for _ in range(steps):
        engine.step()
    engine.cancel(asked)
    run = asked.runs[0]
    assert 0 < len(run.prompt_tokens) < 119
    run.finish_reason = None
    (again,) = finish(engine, Request(prompt, sampling, [run], built=asked.built))
    assert again.prompt_tokens == whole.prompt_tokens and again.tokens == whole.tokens


def test_a_run_that_has_ended_cannot_be_continued_and_max_tokens_holds_for_forks():
    llm = small_llm()
    run = llm.generate(PROMPT, Sampling(seed=1, max_tokens=10, ignore_eos=True))
    with pytest.raises(GlassloopError, match=r"ended by length \(max_tokens\); an interrupted one"):
        llm.prepare_rest(run)
    with pytest.raises(SamplingError, match="max_tokens is 10, and the fork keeps 10 tokens") as raised:
        run.fork(10)
    assert raised.value.field == "max_tokens"
    for at, text in ((10, "more"), (4, "more than six"), (4, "six is")):  # a given text is never cut
        fork = run.fork(at, text=text)
        assert text_of(fork).endswith(text) and len(fork.tokens) == at + len(text)
        assert (fork.finish_reason, fork.stop_reason) == ("length", "max_tokens")


# ── adapters ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_records_of_a_prompt_are_those_of_the_forks_own_adapter():
    llm = with_two_adapters()
    run = llm.generate(
        PROMPT, Sampling(seed=1, max_tokens=8, prompt_logprobs=2, adapter="one", ignore_eos=True)
    )
    for at in (0, 4):
        fork = run.fork(at, adapter="two")
        alone = llm.generate(PROMPT, Sampling(seed=1, max_tokens=1, prompt_logprobs=2, adapter="two"))
        assert fork.prompt_tokens == alone.prompt_tokens != run.prompt_tokens
        for place in (1, 20):
            told = fork.explain(place, of="prompt").taken
            assert told.raw_logprob == fork.prompt_tokens[place - 1].raw_logprob
        assert set(fork.adapters) == ({"one", "two"} if at else {"two"})
        assert fork.replay().identical


def test_a_lens_looks_with_the_adapter_that_the_token_was_drawn_with():
    llm = with_two_adapters()
    run = llm.generate(PROMPT, Sampling(seed=1, max_tokens=8, adapter="one", ignore_eos=True, temperature=0))
    fork = run.fork(4, adapter="two")
    for at, token in enumerate(fork.tokens):
        seen = llm.lens.layers(fork, len(PROMPT) + at - 1, 1).layers[-1].top[0]
        assert seen.id == token.id and seen.logprob == pytest.approx(token.raw_logprob, abs=1e-6)


# ── luck ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_what_if_is_what_the_fork_gives_at_any_place_of_a_fork():
    """Also where an ancestor has drawn the token, with other options and other luck."""
    llm = small_llm()
    run = llm.generate(PROMPT, Sampling(seed=2, max_tokens=24, ignore_eos=True))
    colder = run.fork(12, temperature=0.4, max_tokens=30)
    other = colder.fork(20)
    for at in range(0, 24, 3):
        for change in ({"temperature": 0.7}, {"top_k": 5}, {"seed": 9}, {"temperature": 0.0}):
            told = other.explain(at, **change).winner.id
            fork = other.fork(at, **change)
            assert fork.token_ids[at] == told, (at, change)
            assert fork.sampling.max_tokens == 30 and fork.replay().identical
        told = other.explain(at, luck="new")
        assert other.fork(at).token_ids[at] == told.winner.id


def test_rewound_to_before_a_fork_and_continued_it_is_the_ancestor():
    llm = small_llm()
    run = llm.generate(PROMPT, Sampling(seed=2, max_tokens=24, ignore_eos=True))
    fork = run.fork(12, temperature=0.3)
    assert rest(llm, fork.rewind(8)).tokens == run.tokens
    assert rest(llm, fork.rewind(15)).tokens == fork.tokens


def test_forks_that_are_made_at_once_have_different_luck():
    llm = small_llm()
    run = llm.generate(PROMPT, Sampling(seed=2, max_tokens=4, ignore_eos=True))
    salts: list[int] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(40):
            threads = [
                threading.Thread(target=lambda: salts.append(llm.prepare_fork(run, 2).runs[0].salt))
                for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(set(salts)) == len(salts) == 160
    assert sorted(salts) == sorted(fork_salt(run.salt, len(PROMPT) + 2, 1 + number) for number in range(160))


def test_a_stored_run_does_not_repeat_the_luck_of_its_forks(tmp_path: Path):
    llm, store = small_llm(), Store(tmp_path / "runs.db")
    run = llm.generate(PROMPT, Sampling(seed=2, max_tokens=8, ignore_eos=True))
    store.add(run)
    forks = [run.fork(3) for _ in range(3)]
    store.add(*forks)
    alone = store.run(run.id)
    assert alone is not None
    store.count_forks(alone)
    for read in (store.get(run.id), alone):
        read.attach(llm)
        assert read.fork(3).salt == fork_salt(run.salt, len(PROMPT) + 3, 4)


def test_a_revision_does_not_depend_on_forks_that_are_made_meanwhile():
    llm = small_llm()
    sampling = Sampling(seed=3, temperature=1.2, max_tokens=40, revise=4, revise_window=6, revise_bits=4.0)
    alone = llm.generate(PROMPT, sampling)
    assert alone.revised
    asked, forked = llm.prepare(PROMPT, sampling), list[int]()

    def fork_everywhere(run: Run, token: object) -> None:
        for at in range(len(run.tokens) + 1):
            if run.finish_reason is None:
                forked.append(llm.prepare_fork(run, at).runs[0].salt)

    asked.listener = fork_everywhere
    done = threading.Event()
    listener = asked.listener
    asked.listener = lambda run, token: (listener(run, token), done.set() if asked.ended else None)
    llm.submit(asked)
    assert done.wait(60) and forked
    assert asked.runs[0].token_ids == alone.token_ids and asked.runs[0].salt not in forked


# ── windows ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(10))
def test_revision_with_a_sliding_window_under_memory_pressure(seed):
    """What is taken back may make pages visible again that had been given to others."""
    rng = np.random.default_rng(seed)
    small = model(int(rng.integers(8, 40)))
    prompts = [rng.integers(0, 256, int(rng.integers(20, 60))).tolist() for _ in range(4)]
    samplings = [
        Sampling(seed=seed, temperature=1.3, max_tokens=80, revise=8, revise_window=50, revise_bits=2.0)
        for _ in prompts
    ]
    asked = [request(prompt, each) for prompt, each in zip(prompts, samplings, strict=True)]
    expected = [finish(loop(small), request(*both))[0] for both in zip(prompts, samplings, strict=True)]
    engine = loop(small, pages=9)
    for each in asked:
        engine.add(each)
    while engine.busy:
        engine.step()
        engine.tree.check_integrity()
    for each, alone in zip(asked, expected, strict=True):
        assert each.runs[0].tokens == alone.tokens and each.runs[0].revised == alone.revised
    assert any(run.revised for run in expected)
