"""Revision while writing: what comes out is what the definition says, whatever runs beside it; what was taken
back stays in the tree; a stream announces it; and without `revise` nothing of this is there."""

from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np
import pytest
from engine.random_runs import PROMPT, SmallLLM, small_llm
from engine.small import CONTEXT, finish, loop, model, request, tokenizer

from glassloop import Run, Sampling, SamplingError
from glassloop.decode.chosen import Chosen
from glassloop.decode.decoder import Decoder
from glassloop.decode.luck import fork_salt
from glassloop.decode.stop import Pause
from glassloop.engine.request import Request
from glassloop.engine.tasks.make import tasks_of
from glassloop.engine.tasks.revise import Revising, settled_tokens
from glassloop.engine.tasks.sample import Sample
from glassloop.model.cache import Branches
from glassloop.ops.native.ops import NativeOps
from glassloop.record.token import TakenBack, Token

SAMPLING = Sampling(temperature=1.2, seed=3, max_tokens=40, revise=4, revise_window=6, revise_bits=4.0)


def definition(prompt: list[int], sampling: Sampling, seed: int, salt: int) -> tuple[list[int], list[int]]:
    """The tokens of a run with `revise`, by the definition: each token is chosen by a new decoder from the
    logits of the whole text; then the last ones are looked at. Also returns the places of revisions."""
    small, texts = model(), tokenizer()
    ids: list[int] = []
    made: list[Chosen] = []
    surprise: list[float] = []
    places: list[int] = []
    since = 0
    while len(ids) < sampling.max_tokens:
        decoder = Decoder(sampling, 257, seed, prompt, salt, texts, tuple(texts.eos_ids), small.ops.rows)
        for before in made:
            decoder.commit(before.id, before)
        chosen = decoder.choose(Branches(small, CONTEXT + 32).forward([(0, 0, [*prompt, *ids])])[0])
        if chosen.id in texts.eos_ids:
            break
        ids.append(chosen.id)
        made.append(chosen)
        surprise.append(-chosen.raw_logprob / log(2))
        window = sampling.revise_window
        if len(ids) == sampling.max_tokens or len(places) == sampling.revise or len(ids) - since < window:
            continue
        if sum(surprise[-window:]) > window * sampling.revise_bits:
            since = len(ids) - window + int(np.argmax(surprise[-window:]))
            places.append(since)
            # The counter of forks is that of the run which was taken back, so it is always the first.
            salt = fork_salt(salt, len(prompt) + since, 1)
            del ids[since:], made[since:], surprise[since:]
    return ids, places


@pytest.mark.parametrize("seed", range(6))
def test_it_is_what_the_definition_says_whatever_runs_beside_it(seed, monkeypatch):
    monkeypatch.setattr(NativeOps, "step_rows", [512, 24][seed % 2])
    sampling = replace(SAMPLING, seed=seed, n=2, mirostat_tau=8.0 if seed % 3 == 2 else 0.0)
    asked = request(PROMPT, sampling)
    others = [request(PROMPT[:9], Sampling(seed=n, max_tokens=30, revise=n % 3)) for n in range(3)]
    engine = loop(model(), pages=[1000, 14][seed % 2])
    finish(engine, *others, asked)
    for run in asked.runs:
        ids, places = definition(PROMPT, sampling, seed, run.sample)
        assert run.token_ids == ids
        assert [taken.children[-1].fork_at for taken in run.drafts_taken_back][::-1] == places
    assert engine.tree.check_integrity() is None
    assert any(run.revised for run in asked.runs)


def test_what_was_taken_back_stays_in_the_tree_and_replays(tmp_path):
    llm = small_llm()
    run = llm.generate(PROMPT, SAMPLING)
    old = run.drafts_taken_back
    assert len(old) == run.revised > 1
    tree = list(run.tree())
    assert {each.id for each in (run, *old)} <= {each.id for each in tree}
    for each in tree:
        assert llm.replay(each).identical
    for taken in old:
        assert taken.finish_reason == "cancelled"
        assert taken.stop_reason == f"taken back to token {taken.children[-1].fork_at}"
        assert taken.children[-1].reason == "revised"
    run.save(tmp_path / "a.glass", tree=True)
    read = Run.load(tmp_path / "a.glass", llm=llm)
    assert (read.revised, read.reason, len(list(read.tree()))) == (run.revised, "revised", len(tree))
    assert read.replay(llm).identical
    assert run.explain(run.fork_at).sentence


def test_a_stream_announces_what_is_taken_back():
    llm = small_llm()
    whole = llm.generate(PROMPT, SAMPLING)
    events = list(llm.stream(PROMPT, SAMPLING))
    kept: list[Token] = []
    for event in events:
        if isinstance(event, TakenBack):
            assert event.text == ""
            assert len(kept) - event.taken == event.to
            assert kept[event.to].id == event.id
            del kept[event.to :]
        else:
            kept.append(event)
    assert kept == whole.tokens
    assert sum(isinstance(event, TakenBack) for event in events) == whole.revised
    assert list(settled_tokens(iter(events), SAMPLING.revise_window)) == whole.tokens


def test_a_plain_client_gets_each_token_once():
    """Whatever is settled stays: the tokens that come out early are never taken back."""
    out: list[Token] = []
    sampling = replace(SAMPLING, revise_bits=2.5, revise=20)
    events = list(small_llm().stream(PROMPT, sampling))
    for token in settled_tokens(iter(events), SAMPLING.revise_window):
        out.append(token)
    assert [token.id for token in out] == small_llm().generate(PROMPT, sampling).token_ids


def test_a_run_that_is_stopped_and_continued_is_the_same():
    whole, _ = definition(PROMPT, SAMPLING, 3, 0)
    for steps in (2, 8, 15, 22, 30):
        engine, asked = loop(model()), request(PROMPT, SAMPLING)
        engine.add(asked)
        for _ in range(steps):
            engine.step()
        engine.cancel(asked)
        (run,) = asked.runs
        assert run.finish_reason == "cancelled"
        run.finish_reason, run.stop_reason, run.tail = None, None, ""
        (rest,) = finish(engine, Request(run.prompt_ids, SAMPLING, [run], built=asked.built))
        assert rest.token_ids == whole


def test_grammars_stops_and_penalties_go_back_too():
    llm = small_llm()
    options = replace(SAMPLING, regex="[a-z ]{12,60}", repetition_penalty=1.3, no_repeat_ngram_size=3)
    run = llm.generate(PROMPT, replace(options, revise_bits=1.0))
    assert run.revised == SAMPLING.revise
    assert set(run.text) <= set("abcdefghijklmnopqrstuvwxyz ")
    assert llm.replay(run).identical
    grams = [(*run.token_ids[at : at + 3],) for at in range(len(run.tokens) - 2)]
    assert len(set(grams)) == len(grams)


def test_without_revise_a_sample_is_a_plain_one():
    engine = loop(model())
    for revise, kind in ((0, Sample), (1, Revising)):
        asked = request(PROMPT, Sampling(seed=1, revise=revise))
        (task,) = tasks_of(asked, engine.context, (0, 0))
        assert type(task) is kind


def test_samples_share_a_tree():
    runs = SmallLLM().generate(PROMPT, replace(SAMPLING, n=3)).samples
    assert len(runs) == 3
    assert any(run.revised for run in runs)
    trees = [{each.id for each in run.tree()} for run in runs]
    assert trees[0] == trees[1] == trees[2]


@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"beam_width": 2}, {"revise": 65}, {"revise": -1}, {"revise_window": 1}]
)
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(SamplingError) as raised:
        Sampling(**{"revise": 2, **options})
    assert raised.value.field in ("revise", "revise_window")


def test_a_continued_run_that_is_taken_back_stays_among_its_samples():
    llm = SmallLLM()
    engine, sampling = llm.engine.loop, replace(SAMPLING, n=2, ignore_eos=True)
    whole = SmallLLM().generate(PROMPT, sampling).samples  # the other one's thread must not start
    asked = llm.prepare(PROMPT, sampling)
    engine.add(asked)
    for _ in range(4):
        engine.step()
    engine.cancel(asked)
    for run in list(asked.runs):
        rest = llm.prepare_rest(run)
        run.finish_reason, run.stop_reason, run.tail = None, None, ""
        (made,) = finish(engine, rest)
        assert made is not run and made in made.samples
    assert [run.token_ids for run in made.samples] == [run.token_ids for run in whole]
    llm.close()


def test_a_paused_run_that_is_taken_back_when_it_continues_gives_back_all_pages():
    """Its task looks back before it holds any."""
    llm = SmallLLM()
    engine, sampling = llm.engine.loop, replace(SAMPLING, ignore_eos=True)
    whole = llm.generate(PROMPT, sampling)
    taken_back = 0
    for pause in range(sampling.revise_window, 20):
        asked = llm.prepare(PROMPT, sampling)
        asked.pause = Pause(pause)
        (run,) = finish(engine, asked)
        rest = llm.prepare_rest(run)
        run.finish_reason, run.stop_reason, run.tail = None, None, ""
        engine.add(rest)
        taken_back += rest.runs != [run]
        finish(engine)
        assert rest.runs[0].tokens == whole.tokens
        assert engine.tree.held == 0 and not engine.tree.paths
    assert taken_back
    llm.close()
