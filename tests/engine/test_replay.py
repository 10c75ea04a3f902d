"""What `explain` and `replay` say is what happened: winner, probabilities and margins, bit for bit."""

from __future__ import annotations

import json
import os
from math import inf

import numpy as np
import pytest
from engine.random_runs import PROMPT, random_run, random_sampling, small_llm
from engine.small import CONTEXT, model, naive

from glassloop import LLM, Candidates, GlassloopError, Run, Sampling, SamplingError, Step, TraceError, stage
from glassloop.decode.chosen import RECORD, Chosen
from glassloop.decode.stage import REGISTER
from glassloop.model.cache import Branches
from glassloop.record.format.glass_file import from_bytes, to_bytes
from glassloop.record.token import Token

# Each scenario has some 20 tokens. More for who wants to be surer: GLASSLOOP_SCENARIOS=5000.
SCENARIOS = int(os.environ.get("GLASSLOOP_SCENARIOS", "250"))


def check_explained(run: Run, at: int, llm: LLM | None = None) -> None:
    """All that an explanation shares with the record is equal, not nearly."""
    token = [*run.tokens, run.end][at]
    told = run.explain(at, llm=llm)
    assert told.difference is None
    assert told.taken.id == token.id and told.source == token.source
    assert told.taken.raw_logprob == token.raw_logprob and told.taken.rank == token.rank
    assert (-inf if told.taken.logprob is None else told.taken.logprob) == token.logprob
    assert (told.taken.rank_after or 0) == token.chosen.rank_after
    if token.source in ("sampled", "draft"):
        assert told.winner.id == token.id and told.margin == token.margin
        assert told.winner.luck == token.luck
        assert (told.runner_up and told.runner_up.id) == token.runner_up
    by_id = {racer.id: racer for racer in told.candidates}
    for other in token.alternatives:
        if other.id in by_id:
            racer = by_id[other.id]
            assert racer.raw_logprob == other.raw_logprob
            assert (-inf if racer.logprob is None else racer.logprob) == other.logprob
            assert (racer.removed_by is None) == (other.logprob > -inf)


@pytest.mark.parametrize("seed", range(SCENARIOS))
def test_what_is_told_is_what_happened(seed):
    rng = np.random.default_rng(seed)
    run = random_run(rng)
    loaded = from_bytes(to_bytes([run]))[0]
    verdict = loaded.replay(small_llm())
    assert verdict.identical and verdict.tokens == len(run.tokens) + (run.end is not None), (
        f"{verdict}: {run.sampling}"
    )
    for at in range(verdict.tokens):
        if rng.random() < 0.5:
            check_explained(loaded, at, small_llm())
    if verdict.tokens:
        first = int(rng.integers(verdict.tokens))
        assert loaded.replay(small_llm(), first=first).tokens == verdict.tokens - first
    small_llm().engine.call(small_llm().engine.loop.tree.check_integrity)


@pytest.mark.parametrize("seed", range(40))
def test_forks_of_forks_are_explained_and_replayed_too(seed):
    """What a fork kept was drawn with other options, by other luck; from its file alone that is known."""
    rng = np.random.default_rng(seed)
    run = random_run(rng, n=1)
    for _ in range(3):
        at = int(rng.integers(0, len(run.tokens) + 1))
        options = [
            {},
            {"token": int(rng.integers(97, 123))},
            {"text": "abc"},
            {"temperature": 0.4, "seed": 9},
        ]
        try:
            run = run.fork(at, **options[int(rng.integers(4))])
        except GlassloopError:  # a token that the grammar has no room for
            continue
    loaded = from_bytes(to_bytes([run]))[0]
    verdict = loaded.replay(small_llm())
    assert verdict.identical, f"{verdict}: {run.sampling}"
    for at in range(verdict.tokens):
        check_explained(loaded, at, small_llm())


@pytest.mark.parametrize("seed", range(10))
def test_a_fork_is_what_a_fresh_run_forced_to_the_same_tokens_is(seed):
    rng = np.random.default_rng(seed)
    sampling = random_sampling(rng, n=1, max_tokens=30, min_tokens=30, stop=[], regex=None, prompt_logprobs=0)
    run = small_llm().generate([PROMPT], sampling)[0]
    if run.error is not None or len(run.tokens) < 10:
        return
    token = int(rng.integers(97, 123))
    try:
        fork = run.fork(6, token=token)
    except SamplingError as error:  # after the other token the stages are at odds
        assert "no token is left" in str(error)
        return
    expected = naive(model(), fork, forced=[*run.token_ids[:6], token])
    assert fork.tokens == expected.tokens and fork.text == expected.text
    assert fork.cached_tokens >= len(PROMPT)  # what the parent computed is not computed again


def test_beams_are_searched_again_and_every_step_of_them_can_be_asked_about():
    run = small_llm().generate(PROMPT, Sampling(beam_width=4, n=2, max_tokens=12, seed=1, temperature=0.7))
    for each in from_bytes(to_bytes(run.samples)):
        assert each.replay(small_llm()).identical
        for at in range(len(each.tokens)):
            check_explained(each, at, small_llm())
    assert "is on the beam that was best as a whole" in run.explain(3).sentence
    assert "is on the beam that was 2nd best as a whole" in run.samples[1].explain(3).sentence


def test_a_fork_keeps_the_tokens_of_a_search_which_are_explained_and_replayed():
    run = small_llm().generate(PROMPT, Sampling(beam_width=4, n=2, max_tokens=12, seed=1, ignore_eos=True))
    for each in run.samples:
        fork = from_bytes(to_bytes([each.fork(5, beam_width=1, n=1)]))[0]
        assert [token.source for token in fork.tokens[:6]] == ["beam"] * 5 + ["sampled"]
        assert fork.replay(small_llm()).identical
        for at in range(len(fork.tokens)):
            check_explained(fork, at, small_llm())
        told = fork.explain(2, llm=small_llm())  # the search itself is in the parent's record
        assert told.beam is None and "is on a beam that the search kept" in told.sentence


@pytest.mark.parametrize("seed", range(20))
def test_a_token_of_the_prompt_is_explained_as_it_was_scored(seed):
    """The stages have no part in it, whatever was asked for."""
    rng = np.random.default_rng(seed)
    run = random_run(rng, prompt_logprobs=4)
    scored = run.prompt_tokens
    for at in range(1, 1 + len(scored)):
        token, told = scored[at - 1], run.explain(at, of="prompt")
        assert (told.taken.id, told.source, told.stages) == (run.prompt_ids[at], "prompt", ())
        assert (told.taken.rank, told.taken.raw_logprob) == (token.rank, token.raw_logprob)
        assert told.winner.id == token.alternatives[0].id and told.winner.luck == 0
        by_id = {racer.id: racer for racer in told.candidates}
        assert all(by_id[other.id].logprob == other.logprob for other in token.alternatives)
        assert "is part of the prompt" in told.sentence and told.difference is None


def test_logits_are_those_of_the_whole_text_computed_anew():
    llm = small_llm()
    ids = PROMPT * 3
    whole = Branches(model(), CONTEXT).forward([(0, 0, ids)], every_logit=True)
    for first in (0, 5, 31, 32, 33, len(ids) - 1):
        assert np.array_equal(llm.logits(ids, first), whole[first:])
    assert np.array_equal(llm.logits(ids), whole[-1:])
    with pytest.raises(GlassloopError, match="first is 500"):
        llm.logits(ids, 500)
    with pytest.raises(GlassloopError, match=r"token_ids\[0\] is 9999"):
        llm.logits([9999])


def test_a_what_if_is_what_would_have_come():
    llm = small_llm()
    run = llm.generate(PROMPT, Sampling(seed=5, max_tokens=30, temperature=1.5))
    for at in range(0, len(run.tokens), 3):
        for options in ({"temperature": 0.3}, {"top_k": 2}, {"seed": 77}, {"temperature": 0}):
            forked = run.fork(at, **options)
            assert run.explain(at, **options).winner.id == [*forked.tokens, forked.end][at].id


def test_a_change_is_found_and_told():
    llm = small_llm()
    run = llm.generate(PROMPT, Sampling(seed=5, max_tokens=20, ignore_eos=True))
    other = small_llm(seed=1)
    for ask in (run.replay, lambda llm: run.fork(3, llm=llm), lambda llm: run.explain(3, llm=llm)):
        with pytest.raises(TraceError, match="was made by another model: small"):
            ask(other)
    verdict = run.replay(other, strict=False)
    assert not verdict and verdict.first is not None and "made by another model" in str(verdict)
    assert f"first differs at token {verdict.first.at}" in str(verdict)
    run.tokens[7].chosen = run.fork(7, token=3).tokens[7].chosen
    verdict = run.replay(llm)
    assert not verdict.identical and verdict.first is not None and verdict.first.at == 7


def test_another_op_set_has_the_same_tokens_and_nearly_the_same_numbers():
    run = small_llm().generate(PROMPT, Sampling(seed=5, max_tokens=20))
    verdict = run.replay(small_llm("reference"))
    assert not verdict.identical and verdict.same_tokens == verdict.tokens and 0 < verdict.largest < 0.01
    assert "but not the same numbers" in str(verdict) and "computed again with reference" in str(verdict)


def forged(token: Token, **changes: float) -> Token:
    """The token with other numbers in its record."""
    fields = {name: getattr(token.chosen, name) for name in RECORD.names or ()}
    return Token(
        Chosen.of(token.chosen.packed_alternatives, **fields | changes),
        token.text,
        token.bytes,
        token._pieces,
        token.source,
    )


def test_a_run_of_another_op_set_is_explained_with_both_numbers():
    run = small_llm().generate(PROMPT, Sampling(seed=5, max_tokens=20, prompt_logprobs=3))
    other = small_llm("reference")
    for of, tokens, first in (("answer", run.tokens, 0), ("prompt", run.prompt_tokens, 1)):
        for at, token in enumerate(tokens[:12], first):
            told = run.explain(at, llm=other, of=of)
            found = told.difference
            assert found is not None and found.recorded.id == found.now.id == told.taken.id == token.id
            assert found.recorded.logprob == token.logprob and found.now.logprob == told.taken.logprob
            made = (
                f"The run was made with {small_llm().op_set}, computed again with reference. Computed now: "
            )
            assert told.sentence.startswith(f"The record has other numbers for “{token.piece}” (")
            assert made in told.sentence and told.to_dict()["difference"]["sentence"] in told.sentence
    assert run.explain(3, llm=other, temperature=0.5).difference is None  # a what-if has no record
    assert run.explain(20, llm=other).difference is None  # nor has the next token


def test_a_token_that_would_not_come_now_is_told_as_the_record_has_it():
    """The margin of a close race is within the difference of two op sets: either token may be recorded."""
    run = small_llm().generate(PROMPT, Sampling(seed=5, max_tokens=20, temperature=2.0, ignore_eos=True))
    at = min(range(20), key=lambda at: run.tokens[at].margin)
    token = run.tokens[at]
    assert token.runner_up is not None
    run.tokens[at] = forged(token, id=token.runner_up, runner_up=token.id, logprob=-0.5, margin=0.25)
    for ask in (run.explain, lambda at: run.explain(at, llm=small_llm("reference"))):
        told = ask(at)
        found = told.difference
        assert found is not None and "id" in found.fields
        assert (told.taken.id, told.winner.id) == (token.runner_up, token.id)
        assert (found.recorded.id, found.now.id, found.recorded.margin) == (token.runner_up, token.id, 0.25)
        piece = small_llm().piece(token.runner_up)
        assert told.sentence.startswith(f"The record has “{piece}” (60.7 %, won by 0.25); computed now, ")
        assert f"computed now, “{token.piece}” wins (" in told.sentence
        assert f"Computed now: “{token.piece}” was " in told.sentence
        printed = str(told)
        assert printed.index("The record has") < printed.index("token ")  # before the tables
        assert "The record has" in told._repr_html_()
    assert "Why is not known: the stages or the weights may not be the same" in run.explain(at).sentence


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"entropy": 1.25}, ", entropy 1.25) than are computed now ("),
        ({"margin": inf}, "no other token left) than"),
        ({"logprob": -inf}, "(removed by a stage, won by"),
        ({"survivors": 7}, ", survivors 7) than"),
    ],
)
def test_every_number_of_the_record_is_compared(change, said):
    run = small_llm().generate(PROMPT, Sampling(seed=5, max_tokens=4, ignore_eos=True))
    run.tokens[2] = forged(run.tokens[2], **change)
    told = run.explain(2)
    assert told.difference is not None and told.difference.fields == tuple(change)
    assert said in told.sentence, told.sentence
    assert json.loads(json.dumps(told.to_dict(), allow_nan=False))["difference"]["fields"] == [*change]


def test_forced_tokens_and_beams_are_compared_too():
    llm = small_llm()
    beams = llm.generate(PROMPT, Sampling(beam_width=3, max_tokens=6, seed=1, ignore_eos=True))
    forced = llm.generate(PROMPT, Sampling(seed=5, max_tokens=6, ignore_eos=True)).fork(2, token=101)
    for run in (beams, forced):
        assert run.explain(2).difference is None
        run.tokens[2] = forged(run.tokens[2], raw_logprob=-1.5)
        told = run.explain(2)
        assert told.difference is not None and told.difference.fields == ("raw_logprob",)
        assert told.source == run.tokens[2].source and "Computed now: " in told.sentence


def test_a_stage_with_state_is_found_out_and_the_record_comes_first():
    calls = 0

    @stage("every_other", kind="mask")
    def every_other(candidates: Candidates, step: Step) -> Candidates:
        nonlocal calls
        calls += 1
        return candidates.without(candidates.ids[:1]) if calls % 2 else candidates

    try:
        options = Sampling(temperature=0, max_tokens=5, ignore_eos=True, stages=["every_other"])
        run = small_llm().generate(PROMPT, options)
        calls = 0
        told = run.explain(1)  # chosen in the second call, explained in the first one
        assert told.difference is not None and told.taken.id == run.token_ids[1] != told.winner.id
        assert told.sentence.startswith(f"The record has “{run.tokens[1].piece}” (")
        assert "a stage that keeps state" in told.sentence
    finally:
        del REGISTER["every_other"]


def test_the_place_behind_the_last_token_is_that_of_the_next_one():
    run = small_llm().generate(PROMPT, Sampling(seed=5, max_tokens=4, ignore_eos=True))
    longer = small_llm().generate(PROMPT, Sampling(seed=5, max_tokens=5, ignore_eos=True))
    told = run.explain(4)
    assert (told.winner.id, told.winner.luck) == (longer.tokens[4].id, longer.tokens[4].luck)
    assert run.explain(4, luck="new").winner.id == run.fork(4, max_tokens=5).tokens[4].id


def test_what_goes_on_needs_the_op_set_that_made_the_run():
    """A record has the numbers of one op set. One from before op sets were recorded names none."""
    native, reference = small_llm(), small_llm("reference")
    run = native.generate(PROMPT, Sampling(seed=5, max_tokens=8, ignore_eos=True))
    stopped = run.rewind(4)
    for ask in (
        lambda: run.fork(3, llm=reference),
        lambda: run.fork(3, token=65, llm=reference),
        lambda: reference.prepare_rest(stopped),
    ):
        with pytest.raises(TraceError, match=f"made with the op set {native.op_set}, and this is reference"):
            ask()
    assert run.explain(3, llm=reference).winner.id == run.token_ids[3]
    stopped.ops = run.ops = ""
    assert run.fork(3, llm=reference).ops == "reference"
    assert reference.prepare_rest(stopped).runs == [stopped]


def test_a_place_that_is_not_there():
    run = small_llm().generate(PROMPT, Sampling(seed=5, max_tokens=4, ignore_eos=True))
    with pytest.raises(TraceError, match="at is 5; a token from 0 to 4 is expected"):
        run.explain(5)
    with pytest.raises(TraceError, match="at is -1"):
        run.explain(-1)
    for at in (0, len(PROMPT)):
        with pytest.raises(TraceError, match=f"at is {at}; a token from 1 to {len(PROMPT) - 1} is expected"):
            run.explain(at, of="prompt")
    with pytest.raises(TraceError, match="of is 'middle'"):
        run.explain(1, of="middle")
    with pytest.raises(TraceError, match="luck is 'good'"):
        run.explain(1, luck="good")
    with pytest.raises(TraceError, match="first is 9"):
        run.replay(first=9)


def test_the_default_model_too(tmp_path):
    llm = LLM()
    for options in ({}, {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.1}, {"temperature": 0}):
        llm.generate("The capital of France is", Sampling(max_tokens=40, seed=7, **options)).save(
            tmp_path / "a.glass"
        )
        run = Run.load(tmp_path / "a.glass", llm=llm)
        assert run.replay().identical
        for at in range(0, len(run.tokens), 7):
            check_explained(run, at)
