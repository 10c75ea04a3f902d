"""Fork, rewind, force: a branch from any token of a run, which stays as it is."""

from __future__ import annotations

import pytest
from engine.small import naive

from glassloop import LLM, GlassloopError, Sampling, SamplingError, TextError
from glassloop.decode.luck import fork_salt


@pytest.fixture(scope="module")
def llm():
    with LLM() as made:
        yield made


@pytest.fixture(scope="module")
def run(llm):
    return llm.generate("The best thing about the sea is", Sampling(seed=11, max_tokens=24))


def test_a_forced_token_goes_in_with_its_reasons_and_the_cache_is_shared(llm, run):
    before = list(run.tokens)
    fork = llm.fork(run, 5, token=" blue")
    assert run.tokens == before and fork.tokens[:5] == before[:5]
    assert fork.tokens[5].piece == " blue" and fork.tokens[5].source == "forced"
    assert fork.tokens[5].raw_logprob < 0 and fork.tokens[5].rank >= 1
    assert (fork.parent, fork.fork_at, fork.reason, fork.salt) == (run.id, 5, "forced", run.salt)
    assert fork.usage.cached_tokens == len(run.prompt_ids) + 5 - 1
    assert len(fork.tokens) == 24 and fork.tokens[6].source in ("sampled", "draft")
    # Position and luck being the same, so is what a fresh run whose prompt ends there says.
    fresh = llm.generate(run.prompt_ids + fork.token_ids[:6], Sampling(seed=11, max_tokens=18))
    assert fresh.token_ids == fork.token_ids[6:]


def test_the_statistics_count_no_more_cached_tokens_of_prompts_than_their_prompts_have(llm, run):
    for _ in range(3):
        fork = llm.fork(run, 20)
    assert fork.usage.cached_tokens > len(run.prompt_ids)  # with those of the answer that it continues
    told = llm.statistics()[0]
    assert 0 < told.prompt_tokens_cached <= told.prompt_tokens


def test_an_edit_is_any_text_by_token_ids(llm, run):
    fork = llm.fork(run, 3, text=" deep and <|im_end|>")
    ids = llm.tokenizer.encode(" deep and <|im_end|>", add_special=False, parse_special=False)
    assert fork.token_ids[3 : 3 + len(ids)] == ids and fork.reason == "edited"
    assert [token.source for token in fork.tokens[3 : 3 + len(ids)]] == ["forced"] * len(ids)


def test_other_options_keep_the_luck_and_nothing_changes_it(llm, run):
    position = len(run.prompt_ids) + 4
    again = llm.fork(run, 4, temperature=1.0)  # what it was: that is nothing
    assert again.salt == fork_salt(run.salt, position, 1)
    third = llm.fork(run, 4)
    assert third.salt == fork_salt(run.salt, position, 2) and third.token_ids[4:] != again.token_ids[4:]
    colder = llm.fork(run, 4, temperature=0.01)
    assert colder.salt == run.salt and colder.seed == run.seed and colder.tokens[4].rank == 1
    greedy = llm.fork(run, 4, temperature=0)
    assert greedy.token_ids == colder.token_ids


def test_a_fork_of_a_fork_and_a_fork_with_samples(llm, run):
    once = llm.fork(run, 2, token=" blue")
    twice = llm.fork(once, 6, text=" cold")
    assert twice.token_ids[:6] == once.token_ids[:6] and twice.parent == once.id
    many = llm.fork(run, 6, n=3, max_tokens=12)
    assert [each.token_ids[:6] for each in many.samples] == [run.token_ids[:6]] * 3
    assert len({tuple(each.token_ids) for each in many.samples}) == 3


def test_rewound_to_the_start_and_at_the_very_end(llm, run):
    assert llm.fork(run, 0, temperature=0).tokens[0].rank == 1
    longer = llm.fork(run, len(run.tokens), max_tokens=30)
    assert longer.token_ids[: len(run.tokens)] == run.token_ids and len(longer.tokens) == 30


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"at": 99}, "at is 99; a number of tokens from 0 to 24"),
        ({"at": 1, "token": 1, "text": "a"}, "token and text are both given"),
        ({"at": 1, "token": " of the sea"}, "is no single token"),
        ({"at": 1, "token": 49152}, "a token id below 49152"),
        ({"at": 1, "beam_width": 3}, "beam_width"),
        ({"at": 1, "temprature": 1}, "did you mean temperature"),
    ],
)
def test_what_makes_no_sense_is_an_error(llm, run, options, told):
    with pytest.raises((GlassloopError, SamplingError, TextError), match=told):
        llm.fork(run, **options)


def test_it_equals_the_naive_loop_forced_to_the_same_tokens(llm, run):
    """On the real model, a few tokens."""
    fork = llm.fork(run, 2, token=" blue", max_tokens=6)
    expected = naive(llm.transformer, fork, fork.token_ids[:3], llm.tokenizer)
    assert fork.tokens == expected.tokens
