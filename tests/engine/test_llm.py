"""The loop on the default model: what goes in, what comes out, how it ends."""

from __future__ import annotations

import pytest

from glassloop import LLM, GlassloopError, Sampling, TextError


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM()


def test_it_knows_the_capital_of_france(llm):
    run = llm.generate("The capital of France is", Sampling(temperature=0, max_tokens=4))
    assert run.text.startswith(" Paris")
    assert run.finish_reason == "length" and len(run.token_ids) == 4
    assert run.usage.prompt_tokens == 5 and run.usage.total_tokens == 9
    assert run.usage.context_left == llm.config.context - 9


def test_text_and_token_ids_are_the_same_prompt(llm):
    sampling = Sampling(seed=7, max_tokens=6)
    ids = llm.tokenizer.encode("Once upon a time")
    assert llm.generate(ids, sampling).token_ids == llm.generate("Once upon a time", sampling).token_ids


def test_the_seed_fixes_the_answer_and_is_recorded(llm):
    first = llm.generate("I think", Sampling(max_tokens=8))
    again = llm.generate("I think", Sampling(max_tokens=8, seed=first.seed))
    other = llm.generate("I think", Sampling(max_tokens=8, seed=first.seed + 1))
    assert first.token_ids == again.token_ids != other.token_ids


def test_streamed_or_not_the_tokens_are_the_same(llm):
    sampling = Sampling(seed=3, max_tokens=8)
    run = llm.generate("The sea", sampling)
    streamed = list(llm.stream("The sea", sampling))
    assert [token.id for token in streamed] == run.token_ids
    assert b"".join(token.bytes for token in streamed).decode("utf-8", "replace") == run.text
    assert all(token.logprob <= 0 and token.raw_logprob <= 0 for token in streamed)


def test_the_end_of_sequence_token_ends_it_and_is_not_part_of_the_text(llm):
    chat = "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n"
    run = llm.generate(chat, Sampling(temperature=0, max_tokens=200))
    assert run.finish_reason == "stop" and run.stop_reason == "<|im_end|>"
    assert "<|im_end|>" not in run.text and run.text


def test_a_run_that_is_left_early_is_cancelled(llm):
    run = llm.start("One, two, three,", Sampling(temperature=0))
    loop = llm.loop(run, Sampling(temperature=0))
    next(loop), next(loop)
    loop.close()
    assert run.finish_reason == "cancelled" and len(run.tokens) == 2


def test_a_full_context_ends_it(llm, monkeypatch):
    from dataclasses import replace

    monkeypatch.setattr(llm, "config", replace(llm.config, context=8))
    run = llm.generate([504] * 5, Sampling(temperature=0, max_tokens=100))
    assert run.finish_reason == "length"
    assert len(run.tokens) == 3 and run.usage.context_left == 0
    with pytest.raises(TextError, match=r"8 tokens; .* room for 8"):
        llm.generate([504] * 8)


def test_a_long_prompt_is_computed_in_pieces_with_the_same_answer(llm, monkeypatch):
    sampling = Sampling(temperature=0, max_tokens=3)
    whole = llm.generate([504, 3575, 282] * 20, sampling)
    monkeypatch.setattr("glassloop.engine.llm._PREFILL_ROWS", 7)
    assert llm.generate([504, 3575, 282] * 20, sampling).token_ids == whole.token_ids


@pytest.mark.parametrize("prompt", ["", [], [-1], [49152], ["a"], [1.5]])
def test_a_bad_prompt_is_refused(llm, prompt):
    with pytest.raises(GlassloopError, match="prompt"):
        llm.generate(prompt)
