"""Stages that depend on the records of the tokens so far: they get the same ones whenever a token is chosen,
so that Mirostat is as reproducible as a cut without memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from diffuse.small import masked_llm
from engine.random_runs import PROMPT, small_llm
from engine.small import finish, loop, model, naive, request, same

from glassloop import Candidates, GlassloopError, Run, Sampling, SamplingError, Step, stage
from glassloop.decode.chosen import Chosen
from glassloop.decode.decoder import Decoder
from glassloop.decode.diffusion import Diffusion
from glassloop.decode.stage import REGISTER
from glassloop.decode.stages.mirostat import LN2, next_bound
from glassloop.diffuse.hole import fill_holes
from glassloop.record.format.glass_file import from_bytes, to_bytes

MIROSTAT = Sampling(mirostat_tau=2.0, mirostat_eta=0.5, seed=3, max_tokens=24, ignore_eos=True)


def check(run: Run) -> None:
    """The run is the same from its file: replayed as a whole and from each token on, and explained."""
    loaded = from_bytes(to_bytes([run]))[0]
    assert loaded.sampling.mirostat_tau == run.sampling.mirostat_tau
    length = len(run.tokens) + (run.end is not None)
    for first in range(0, length, 5):
        assert loaded.replay(small_llm(), first=first).identical
    for at in range(length):
        told = loaded.explain(at, llm=small_llm())
        assert told.difference is None, told.sentence


@pytest.fixture
def seen():
    """What a stage was given: the records, by the length of the answer."""
    found: dict[int, list[list[Chosen]]] = {}

    @stage("listener", kind="mask", needs_record=True)
    def listener(candidates: Candidates, step: Step) -> Candidates:
        found.setdefault(len(step.record), []).append(list(step.record))
        assert [each.id for each in step.record] == step.history.tokens[step.history.prompt_length :].tolist()
        return candidates

    yield found
    del REGISTER["listener"]


LISTENING = replace(MIROSTAT, stages=("default", "listener"))


def test_the_bound_follows_the_recorded_surprise():
    """The definition of llama.cpp: cut at mu, renormalize, draw, and move mu by the surprise of the draw."""
    run = small_llm().generate(PROMPT, MIROSTAT)
    mu, moved = 4.0, 0
    for at, token in enumerate(run.tokens):
        told = run.explain(at, shown=257)
        assert told.stages[-1].name == "mirostat"
        left = {racer.id for racer in told.candidates if racer.logprob is not None}
        likely = {each.id for each in told.candidates if -each.raw_logprob / LN2 <= mu + 1e-9}
        assert left == likely or (not likely and left == {token.id})
        mass = sum(np.exp(racer.raw_logprob) for racer in told.candidates if racer.id in left)
        surprise = -np.log2(np.exp(token.raw_logprob) / mass)
        assert surprise == pytest.approx(-token.logprob / LN2, abs=1e-6)
        mu, moved = mu - 0.5 * (-token.logprob / LN2 - 2.0), moved + (surprise > 0)
    assert moved > 5


def test_texts_have_the_surprise_that_was_asked_for():
    for tau in (0.5, 1.5, 3.0):
        options = replace(MIROSTAT, mirostat_tau=tau, max_tokens=120, temperature=1.5)
        run = small_llm().generate(PROMPT, options)
        assert np.mean([-token.logprob / LN2 for token in run.tokens]) == pytest.approx(tau, abs=0.35)


def test_a_forced_token_without_a_surprise_leaves_the_bound():
    run = small_llm().generate(PROMPT, replace(MIROSTAT, mirostat_tau=0.1))
    fork = run.fork(4, token=101)
    assert fork.tokens[4].logprob == -np.inf and next_bound(3.0, fork.tokens[4].chosen, 0.1, 0.5) == 3.0
    check(fork)


@pytest.mark.parametrize("ops", ["native", "ahead"])
def test_it_equals_the_naive_loop_beside_others(ops):
    small = model(None, ops)
    asked = [request(PROMPT, replace(MIROSTAT, seed=seed, n=2)) for seed in range(4)]
    engine = loop(small, pages=14)
    for run in finish(engine, *asked):
        assert same(run, naive(small, run))


class Oracle:
    """A drafter that knows what will come, but for every fifth token."""

    name = "lookup"
    is_own = True

    def __init__(self, expected: list[int]) -> None:
        self._expected = expected

    def guess(self, tokens, room):
        made = len(tokens) - len(PROMPT)
        return [token + (place % 5 == 4) for place, token in enumerate(self._expected)][made : made + room]

    def learn(self, branch, place):
        pass


def test_accepted_drafts_are_part_of_the_record():
    small, engine = model(), loop(model())
    asked = request(PROMPT, MIROSTAT)
    expected = naive(small, asked.runs[0])
    engine.drafts.guesser = lambda *run: Oracle(expected.token_ids)  # type: ignore[method-assign]
    (run,) = finish(engine, asked)
    assert same(run, expected) and run.drafts.accepted > 10
    assert any(token.refused is not None for token in run.tokens)


def test_runs_forks_edits_and_continued_runs_are_replayed_and_explained():
    llm = small_llm()
    run = llm.generate(PROMPT, MIROSTAT)
    check(run)
    for fork in (run.fork(6), run.fork(6, token=101), run.fork(6, text="abc"), run.fork(9, mirostat_tau=1.0)):
        check(fork)
    plain = llm.generate(PROMPT, replace(MIROSTAT, mirostat_tau=0.0, temperature=1.5))
    check(plain.fork(8, mirostat_tau=1.0))  # the tokens that it keeps have the records of their own options
    part = run.rewind(7)
    part.finish_reason = part.stop_reason = None
    assert len(list(llm.follow(llm.prepare_rest(part)))) == len(run.tokens) - 7
    assert part.tokens == run.tokens


def test_a_what_if_is_what_a_fork_would_choose():
    run = small_llm().generate(PROMPT, replace(MIROSTAT, mirostat_tau=0.0))
    for at in range(0, 20, 3):
        forked = run.fork(at, mirostat_tau=1.0, max_tokens=at + 1)
        assert run.explain(at, mirostat_tau=1.0).winner.id == forked.tokens[at].id


def test_revised_runs_and_beams_have_records_of_their_own():
    revised = small_llm().generate(
        PROMPT, replace(MIROSTAT, temperature=2.5, revise=3, revise_window=4, revise_bits=2.0)
    )
    assert revised.revised
    check(revised)
    beams = small_llm().generate(PROMPT, replace(MIROSTAT, beam_width=3, n=3))
    for each in beams.samples:
        assert each.replay(small_llm()).identical
        for at in range(len(each.tokens)):
            assert each.explain(at).difference is None


@pytest.mark.parametrize("options", [{}, {"n": 2}, {"beam_width": 3}])
def test_a_stage_gets_the_records_that_the_run_has(seen, options):
    run = small_llm().generate(PROMPT, replace(LISTENING, max_tokens=10, **options))
    live = {length: list(records) for length, records in seen.items()}
    for each in run.samples:
        records = [token.chosen for token in each.tokens]
        assert all(records[:length] in live[length] for length in range(10))
        seen.clear()
        each.explain(6)
        assert seen == {6: [records[:6]]}
        seen.clear()
        if not options.get("beam_width"):
            each.replay(first=7)
            assert seen == {length: [records[:length]] for length in (7, 8, 9)}
            each.fork(5, max_tokens=7, n=1)
            assert seen[5] == [records[:5]]


def test_a_stage_that_does_not_ask_for_the_record_has_none():
    @stage("forgetful", kind="mask")
    def forgetful(candidates: Candidates, step: Step) -> Candidates:
        assert step.past_choices is None
        return candidates.first(1 + len(step.record))

    try:
        with pytest.raises(SamplingError, match="registered with needs_record=True only"):
            small_llm().generate(PROMPT, Sampling(max_tokens=2, stages=["forgetful"]))
    finally:
        del REGISTER["forgetful"]
    decoder = Decoder(MIROSTAT, 257, 3, PROMPT)
    with pytest.raises(
        SamplingError, match="mirostat: the record of every token is needed; token 7 has none"
    ):
        decoder.commit(7)


def test_masks_cannot_be_filled_with_memory(seen):
    llm = masked_llm()
    for options, named in (
        (replace(MIROSTAT, ignore_eos=False), "mirostat_tau is"),
        (Sampling(stages=("listener",)), "stages is given; the stage listener needs the record"),
    ):
        with pytest.raises(GlassloopError, match=named):
            llm.generate(PROMPT, replace(options, diffusion=8))
        with pytest.raises(GlassloopError, match=named):
            fill_holes(llm, PROMPT, PROMPT, 3, [options], [0], Diffusion(block=8), llm.mask)
    run = llm.generate(PROMPT, Sampling(diffusion=8, max_tokens=8))
    with pytest.raises(GlassloopError, match="mirostat_tau is 2"):
        llm.explain(run, 1, mirostat_tau=2.0)
