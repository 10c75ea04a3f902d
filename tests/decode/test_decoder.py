"""A branch can be forked and taken back, and many can be asked at once: each is as if it were alone."""

from __future__ import annotations

import time

import numpy as np
import pytest
from decode.naive import recorded
from decode.test_chain import random_sampling
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop import ModelError, Sampling, SamplingError
from glassloop.decode.chosen import Chosen
from glassloop.decode.decoder import Decoder, choose_rows
from glassloop.decode.rules import Action
from glassloop.decode.stage import REGISTER, stage
from glassloop.model.loader import load_tokenizer
from glassloop.ops import choose_ops
from glassloop.ops.native import library

VOCAB = 30
OPTIONS = [
    {},
    {"temperature": 0},
    {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2, "top_k": 9, "top_p": 0.9},
    {"no_repeat_ngram_size": 2, "dry_multiplier": 0.8, "min_tokens": 4, "bad_words": [[3], [1, 2]]},
    {"mirostat_tau": 1.5, "mirostat_eta": 0.5},
]
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=12)
OPS = ["reference", *(["native"] if library.available() else [])]


def row(seed, size=VOCAB):
    return np.random.default_rng(seed).normal(0, 2, size).astype(np.float32)


def same(a, b):
    assert isinstance(a, Chosen) and a == b


def fed(options, prompt, tokens, salt=0, **rest):
    decoder = Decoder(Sampling(**options), VOCAB, 5, prompt, salt, eos_ids=(0,), **rest)
    for token in tokens:
        decoder.commit(token, recorded(token))
    return decoder


def assert_equal(decoder, fresh):
    assert decoder.history.tokens.tolist() == fresh.history.tokens.tolist()
    assert decoder.history.seen.tolist() == fresh.history.seen.tolist()
    for mine, yours in zip(decoder.history.generated, fresh.history.generated, strict=True):
        assert mine.tolist() == yours.tolist()
    for seed in range(2):
        same(decoder.choose(row(seed)), fresh.choose(row(seed)))


@settings(deadline=None)  # a busy machine is no failure
@given(st.sampled_from(OPS), st.sampled_from(OPTIONS), TOKENS, TOKENS, TOKENS, st.booleans(), st.data())
def test_a_rewound_decoder_is_a_fresh_one_fed_with_the_same_tokens(
    name, options, prompt, old, new, asked, data
):
    ops = choose_ops(name).rows
    decoder = fed(options, prompt, old, ops=ops)
    if asked:  # then what is counted is kept up to date, else it is counted afterwards
        decoder.choose(row(9))
    kept = data.draw(st.integers(0, len(old)))
    decoder.rewind(kept)
    assert_equal(decoder, fed(options, prompt, old[:kept], ops=ops))
    for token in new:
        decoder.commit(token, recorded(token))
    assert_equal(decoder, fed(options, prompt, old[:kept] + new, ops=ops))


@settings(deadline=None)  # a busy machine is no failure
@given(
    st.sampled_from(OPS),
    st.sampled_from(OPTIONS),
    TOKENS,
    TOKENS,
    TOKENS,
    TOKENS,
    st.sampled_from([None, 0, 7]),
)
def test_a_fork_and_its_parent_go_their_own_ways(name, options, prompt, shared, mine, yours, salt):
    ops = choose_ops(name).rows
    parent = fed(options, prompt, shared, salt=3, ops=ops)
    parent.choose(row(9))
    fork = parent.fork(salt)
    for one, tokens in ((parent, mine), (fork, yours)):
        for token in tokens:
            one.commit(token, recorded(token))
    assert_equal(parent, fed(options, prompt, shared + mine, salt=3, ops=ops))
    own = 3 if salt is None else salt
    assert_equal(fork, fed(options, prompt, shared + yours, salt=own, ops=ops))


@pytest.mark.parametrize("seed", range(40))
def test_a_fixed_rule_is_the_same_at_every_step(seed):
    """It is asked for once in a request."""
    random = np.random.default_rng(seed)
    sampling = random_sampling(random, VOCAB)
    begun, decoder = Decoder(sampling, VOCAB, 5, eos_ids=(0,)), fed({}, [1, 2], random.integers(0, VOCAB, 9))
    decoder.step.sampling, decoder.step.bad_words = sampling, begun.step.bad_words
    for each in begun.chain:
        if each.fixed:
            for one, other in zip(each.rule(begun.step), each.rule(decoder.step), strict=True):
                assert np.array_equal(one, other), each.name


@pytest.mark.skipif(not library.available(), reason="not built")
@pytest.mark.parametrize("stage_name", ["typical_p", "top_n_sigma", "xtc", "eta_cutoff"])
def test_an_op_set_that_follows_no_rules_about_whole_rows_is_not_asked_to(stage_name, monkeypatch):
    """Its requests are as if these stages had no rule: they run in NumPy; a prediction leaves them out."""
    ops = choose_ops("native").rows
    option = "xtc_probability" if stage_name == "xtc" else stage_name
    sampling = Sampling(top_p=0.9, **{option: 0.5})
    whole = Decoder(sampling, VOCAB, 5, ops=ops)
    chosen = whole.choose(row(3))
    assert len(whole.row_request().rules) == 2 and whole.fixed == (stage_name != "xtc")
    monkeypatch.setattr(ops.chooser, "follows_whole_rows", False)
    limited = Decoder(sampling, VOCAB, 5, ops=ops)
    assert limited.row_request() is None and not limited.fixed
    assert [rule.action for rule in limited.prediction_request().rules] == [Action.MASS]
    same(limited.choose(row(3)), chosen)


def test_the_time_of_own_stages_is_noted_by_name_for_all_branches():
    try:

        @stage("unhurried", kind="mask")
        def unhurried(candidates, step):
            time.sleep(0.002)
            return candidates

        decoder = Decoder(Sampling(top_p=0.9, stages=["default", "unhurried"]), VOCAB, 5)
        for seed in range(3):
            decoder.fork(seed).choose(row(seed))
    finally:
        REGISTER.pop("unhurried", None)
    noted = decoder.step.own_time.take()
    assert list(noted) == ["unhurried"] and noted["unhurried"] >= 0.006
    assert decoder.step.own_time.take() == {}


def test_a_grammar_is_forked_and_rewound():
    tokenizer = load_tokenizer("smollm2-135m-instruct")
    ids = tokenizer.encode("ab12cd", add_special=False)
    sampling = Sampling(regex="(ab)?[0-9]+cd")

    def after(count):
        made = Decoder(sampling, tokenizer.vocab_size, 5, [1], tokenizer=tokenizer)
        for token in ids[:count]:
            made.commit(token)
        return made

    whole = after(len(ids))
    assert whole.finished
    whole.commit(tokenizer.eos_ids[0])  # the grammar has ended: it does not see this one
    for count in reversed(range(len(ids))):
        fork = whole.fork()
        fork.rewind(count)
        assert (fork.step.grammar.mask() == after(count).step.grammar.mask()).all()
        for token in ids[count:]:
            fork.commit(token)
        assert fork.finished and whole.finished


@pytest.mark.parametrize("length", [-1, 3])
def test_there_is_no_way_back_to_where_it_never_was(length):
    with pytest.raises(SamplingError, match="there are 2"):
        fed({}, [1, 2], [3, 4]).rewind(length)


@pytest.mark.parametrize("ops", OPS)
def test_what_other_rows_ask_for_does_not_matter(ops):
    """Rows of all kinds, wide enough for several threads: the same bits as one at a time."""
    size = 40_000
    decoders = [
        Decoder(Sampling(**options), size, 5, [1, 2, 3], ops=choose_ops(ops).rows) for options in OPTIONS * 2
    ]
    logits = np.stack([row(seed, size) for seed in range(len(decoders))])
    for decoder, line, made in zip(decoders, logits, choose_rows(decoders, logits), strict=True):
        same(made, decoder.choose(line))


@pytest.mark.parametrize("ops", OPS)
def test_an_error_ends_its_own_row_only(ops):
    try:

        @stage("broken", kind="mask")
        def broken(candidates, step):
            raise ZeroDivisionError

        asked = [{}, {"stages": ["broken"]}, {"allowed_token_ids": [1], "bad_words": [[1]]}, {}]
        decoders = [Decoder(Sampling(**options), VOCAB, 5, ops=choose_ops(ops).rows) for options in asked]
        logits = np.stack([row(seed) for seed in range(4)])
        logits[3, 4] = np.nan
        made = choose_rows(decoders, logits)
    finally:
        REGISTER.pop("broken", None)
    same(made[0], decoders[0].choose(logits[0]))
    assert [type(each) for each in made[1:]] == [ZeroDivisionError, SamplingError, ModelError]


@pytest.mark.parametrize("ops", OPS)
@pytest.mark.parametrize("size", [VOCAB - 1, VOCAB + 1])
def test_a_row_of_another_vocabulary_is_an_error(ops, size):
    with pytest.raises(ModelError, match=f"a row has {size} logits; {VOCAB} are expected"):
        Decoder(Sampling(), VOCAB, 5, ops=choose_ops(ops).rows).choose(row(1, size))


def test_no_rows_are_no_tokens():
    assert choose_rows([], np.empty((0, VOCAB), np.float32)) == []


@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"top_k": 5}, {"logit_bias": {49160: 9}}])
def test_a_logit_without_a_token_is_never_chosen(options):
    """Models pad their vocabulary; what stands there means nothing, however likely it seems."""
    tokenizer = load_tokenizer("smollm2-135m-instruct")
    size = tokenizer.vocab_size + 20
    logits = row(1, size)
    logits[tokenizer.vocab_size :] = 30.0
    decoder = Decoder(Sampling(**options), size, 5, tokenizer=tokenizer)
    chosen = decoder.choose(logits)
    assert chosen.id < tokenizer.vocab_size and chosen.rank > 20
    likely = chosen.alternatives
    assert (likely["logprob"] == -np.inf).all() and (likely["raw_logprob"] > -4).all()
    assert Decoder(Sampling(**options), size, 5).choose(logits).id >= tokenizer.vocab_size


def test_a_vocabulary_without_gaps_has_no_stage_for_them():
    tokenizer = load_tokenizer("smollm2-135m-instruct")
    assert Decoder(Sampling(), tokenizer.vocab_size, 5, tokenizer=tokenizer).chain == ()
