"""Beam search: against transformers' own, against greedy, and with everything else."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch
from engine.random_runs import PROMPT, random_sampling, small_llm
from engine.small import EOS, check_held, finish, loop, model, naive, request
from model.tiny import TINY, VOCAB, make

from glassloop.decode.compiled import Compiled
from glassloop.decode.decoder import Decoder
from glassloop.decode.history import History
from glassloop.decode.sampling import Sampling
from glassloop.decode.stop import Stopper
from glassloop.engine.loop import Loop
from glassloop.engine.request import Request, runs_of
from glassloop.engine.tasks.beams import Beams
from glassloop.engine.tasks.task import CANCELLED
from glassloop.errors import GlassloopError, SamplingError
from glassloop.model.loader import ModelFiles
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.reference import ReferenceOps
from glassloop.record.format.glass_file import from_bytes, to_bytes
from glassloop.record.run import Run
from glassloop.record.token import Token


class _Plain:
    """A tokenizer for a model whose tokens are mere numbers."""

    eos_ids = (2,)
    vocab_size = VOCAB
    missing_ids = ()

    def token_bytes(self, token: int) -> bytes:
        return f"<{token}>".encode()

    def piece(self, token: int) -> str:
        return f"<{token}>"


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.0, -1.0])
@pytest.mark.parametrize("width", [2, 4])
def test_it_equals_that_of_transformers(tmp_path, width, length_penalty, early_stopping):
    tiny = next(each for each in TINY if each.name == "llama")
    theirs = make(tiny, tmp_path)
    with torch.no_grad():  # ends come often enough to matter
        theirs.lm_head.weight *= 8
        theirs.lm_head.weight[2] *= 1.4
    theirs.save_pretrained(tmp_path)
    small = ModelFiles(tmp_path).transformer(ReferenceOps())
    plain = _Plain()
    memory = 200 * small.page_bytes
    for seed in range(6):
        prompt = np.random.default_rng(seed).integers(3, VOCAB, 9).tolist()
        sampling = Sampling(
            beam_width=width,
            n=width,
            max_tokens=12,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
        )
        engine = Loop(small, plain, plain.piece, memory)
        asked = Request(
            prompt,
            sampling,
            runs_of(sampling, lambda seed, number: Run("tiny", prompt, seed, 64, sampling, sample=number)),  # noqa: B023
            built=Compiled.of(sampling, VOCAB, plain),
        )
        runs = finish(engine, asked)
        expected = theirs.generate(
            torch.tensor([prompt]),
            num_beams=width,
            num_return_sequences=width,
            do_sample=False,
            max_new_tokens=12,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            eos_token_id=2,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
        )
        ours = [run.token_ids + ([run.end.id] if run.end else []) for run in runs]
        wanted = [_up_to_the_end(row) for row in expected.sequences[:, len(prompt) :].tolist()]
        assert ours == wanted, f"seed {seed}"
        scores = [
            sum(token.logprob for token in [*run.tokens, *([run.end] if run.end else [])])
            / len(tokens) ** length_penalty
            for run, tokens in zip(runs, ours, strict=True)
        ]
        assert scores == pytest.approx(expected.sequences_scores.tolist(), rel=1e-3)
        assert engine.tree.held == 0
        engine.tree.check_integrity()


def _up_to_the_end(row: list[int]) -> list[int]:
    return row[: row.index(2) + 1] if 2 in row else row


@pytest.mark.parametrize("seed", range(8))
def test_one_beam_is_greedy_and_four_are_no_worse(seed):
    small = model(None)
    prompt = np.random.default_rng(seed).integers(0, 256, 20).tolist()
    greedy = naive(small, request(prompt, Sampling(temperature=0, max_tokens=12, ignore_eos=True)).runs[0])
    one = request(prompt, Sampling(max_tokens=12, ignore_eos=True))
    engine = loop(small)
    # A width of 1 asks for no search, so the search is asked for by hand.
    task = Beams(one, (0, 0), engine.context)
    engine.tasks.by_request[one] = [task]
    engine.scheduler.add(task)
    while engine.busy:
        engine.step()
    assert one.runs[0].token_ids == greedy.token_ids
    (best, *_) = finish(engine, request(prompt, Sampling(beam_width=4, max_tokens=12, ignore_eos=True)))
    assert best.logprob >= greedy.logprob - 1e-9


@pytest.mark.parametrize(("seed", "pages", "rows"), [(3, 14, 512), (4, 14, 16), (5, 15, 512), (6, 16, 16)])
def test_the_search_is_the_same_beside_others_and_in_little_room(seed, pages, rows, monkeypatch):
    monkeypatch.setattr(NativeOps, "step_rows", rows)
    small = model(40)
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, 256, 50).tolist() for _ in range(4)]
    sampling = Sampling(beam_width=3, n=2, max_tokens=24, repetition_penalty=1.1)
    alone = [finish(loop(small), request(prompt, sampling)) for prompt in prompts]
    engine = loop(small, pages=pages)
    others = [request(prompt[:30], Sampling(max_tokens=40, seed=1)) for prompt in prompts]
    asked = [request(prompt, sampling) for prompt in prompts]
    finish(engine, *[each for pair in zip(others, asked, strict=True) for each in pair])
    for each, expected in zip(asked, alone, strict=True):
        assert [run.tokens for run in each.runs] == [run.tokens for run in expected]
    assert all(run.tokens == naive(small, run).tokens for each in others for run in each.runs)
    assert sum(run.timings.preempted for each in [*asked, *others] for run in each.runs) > 0
    engine.tree.check_integrity()


def test_the_record_has_the_whole_tree():
    engine = loop(model(None))
    best, second = finish(engine, request([65] * 10, Sampling(beam_width=4, n=2, max_tokens=8)))
    nodes = {beam.number: beam for beam in best.beams}
    fates = {beam.fate for beam in best.beams}
    assert {"pruned", "chosen"} <= fates <= {"live", "pruned", "finished", "chosen"}
    for run in (best, second):
        ends = [beam for beam in best.beams if beam.fate == "chosen"]
        ways = []
        for end in ends:
            way, node = [], end
            while True:
                way.append(node.id)
                if node.parent is None:
                    break
                node = nodes[node.parent]
            ways.append(way[::-1])
        assert [*run.token_ids, *([run.end.id] if run.end else [])] in ways
    assert all(token.source == "beam" for token in best.tokens)
    json.dumps(best.to_dict(), allow_nan=False)


def test_a_grammar_and_stop_strings_still_hold():
    engine = loop(model(None))
    runs = finish(engine, request([65, 66], Sampling(beam_width=4, n=4, regex="(ab|cd){2}", max_tokens=12)))
    assert sorted({run.text for run in runs}) == sorted(["abab", "abcd", "cdab", "cdcd"])
    (run,) = finish(engine, request([65, 66], Sampling(beam_width=3, regex="(ab|cd){6}", stop=["d"])))
    assert "d" not in run.text and run.finish_reason == "stop"
    # Fewer texts than were asked for: as many as there are.
    assert len(finish(engine, request([65], Sampling(beam_width=4, n=4, choice=["x", "y"])))) == 2


def test_more_results_than_beams_is_an_error():
    with pytest.raises(SamplingError, match="n is 5; at most beam_width, 4"):
        Sampling(n=5, beam_width=4)


# ── what belongs to each result ─────────────────────────────────────────────────────────────────────────────


def _searching(**options) -> Request:
    """A request for a search, whose runs the small model can explain and replay."""
    given = {"beam_width": 4, "n": 3, "max_tokens": 20, "seed": 1, "ignore_eos": True, **options}
    return small_llm().prepare(PROMPT, Sampling(**given))


def test_all_results_have_the_luck_of_the_search():
    """XTC draws: whether it removes the likeliest tokens at a position is luck."""
    options = {"xtc_probability": 0.5, "xtc_threshold": 0.05, "logprobs": 8}
    runs = finish(loop(model()), _searching(**options))
    assert [run.salt for run in runs] == [0, 0, 0]
    for run in runs:
        assert run.replay().identical
        for at, token in enumerate(run.tokens):
            told = run.explain(at)
            assert told.taken.logprob == token.logprob and told.taken.removed_by is None
        fork = run.fork(9, beam_width=1, n=1)
        assert fork.replay().identical


def test_each_result_has_tokens_of_its_own():
    told: list[tuple[int, int]] = []
    request = _searching(ignore_eos=False, logit_bias={EOS: 14.0})
    request.listener = lambda run, token: told.append((run.sample, token.sample)) if token else None
    runs = finish(loop(model()), request)
    for run in runs:
        records = [*run.tokens, *([run.end] if run.end else [])]
        assert {token.sample for token in records} == {run.sample}
    assert any(run.end is not None for run in runs)
    assert {sample for sample, _ in told} == {0, 1, 2}
    assert all(sample == of_token for sample, of_token in told)


@pytest.mark.parametrize("seed", range(12))
def test_a_loop_ends_the_beam_that_it_is_in(seed):
    """What the other beams write does not count."""
    rng = np.random.default_rng(seed)
    few = rng.integers(97, 123, 3).tolist()
    sampling = Sampling(
        beam_width=4, n=4, max_tokens=24, stop_on_repetition=3, allowed_token_ids=few, temperature=3.0
    )
    prompt = rng.integers(0, 256, 12).tolist()
    for run in finish(loop(model()), request(prompt, sampling)):
        alone, history = Stopper(sampling, (EOS,), run.context), History(prompt)
        endings = []
        for token in run.token_ids:
            history.append(token)
            endings.append(alone.after(history, 0.0))
        assert endings[:-1] == [None] * (len(endings) - 1)
        assert endings[-1] == (run.finish_reason, run.stop_reason)


# ── the prompt ──────────────────────────────────────────────────────────────────────────────────────────────


def _prompt_records(prompt: list[int]) -> list[Token]:
    (run,) = finish(loop(model(40)), request(prompt, Sampling(max_tokens=1, prompt_logprobs=3)))
    assert len(run.prompt_tokens) == len(prompt) - 1
    return run.prompt_tokens


@pytest.mark.parametrize("length", [1, 2, 50, 64, 65, 66, 150])
@pytest.mark.parametrize("rows", [512, 16])
def test_the_prompt_of_a_search_is_scored_as_that_of_a_sample(length, rows, monkeypatch):
    monkeypatch.setattr(NativeOps, "step_rows", rows)
    prompt = np.random.default_rng(length).integers(0, 256, length).tolist()
    expected = _prompt_records(prompt)
    plain = Sampling(beam_width=3, n=2, max_tokens=8)
    alone = finish(loop(model(40)), request(prompt, plain))
    engine = loop(model(40))
    for _ in range(2):  # the second time, the prompt is in the cache
        runs = finish(engine, request(prompt, replace(plain, prompt_logprobs=3)))
        assert [run.prompt_tokens for run in runs] == [expected, expected]
        assert [run.tokens for run in runs] == [run.tokens for run in alone]
    check_held(engine)


@pytest.mark.parametrize("evictions", [(), (5,), (5, 17)])
def test_scoring_survives_preemption(evictions, monkeypatch):
    """It goes on where it was, whether what was computed is still in the cache or not."""
    monkeypatch.setattr(NativeOps, "step_rows", 16)
    prompt = np.random.default_rng(1).integers(0, 256, 100).tolist()
    sampling = Sampling(beam_width=3, n=2, max_tokens=12, prompt_logprobs=3)
    alone = finish(loop(model(40)), request(prompt, sampling))
    engine, asked = loop(model(40), pages=16), request(prompt, sampling)
    engine.add(asked)
    (task,) = engine.tasks.by_request[asked]
    scoring = 0
    for step in count():
        engine.step()
        if not engine.busy:
            break
        branch = task.branches[0]
        if step % 3 == 2 and task in engine.scheduler.running:
            engine.scheduler.preempt(task)
            if step in evictions:
                scoring += 1 < branch.recorded < len(branch.tokens)
                engine.tree.forget(0)
        check_held(engine)
    assert [run.tokens for run in asked.runs] == [run.tokens for run in alone]
    assert all(run.prompt_tokens == _prompt_records(prompt) for run in asked.runs)
    assert scoring == min(1, len(evictions))


def test_a_search_that_is_cancelled_while_its_prompt_is_scored_has_a_part_of_the_records():
    prompt = np.random.default_rng(1).integers(0, 256, 150).tolist()
    engine, asked = loop(model(40)), request(prompt, Sampling(beam_width=3, n=2, prompt_logprobs=3))
    engine.add(asked)
    engine.step()
    engine.cancel(asked)
    (scored,) = {len(run.prompt_tokens) for run in asked.runs}
    assert 0 < scored < 149 and asked.runs[1].prompt_tokens == _prompt_records(prompt)[:scored]
    assert [run.finish_reason for run in asked.runs] == ["cancelled", "cancelled"]
    check_held(engine)


# ── a search that is cut short ──────────────────────────────────────────────────────────────────────────────


def _ends(asked: Request) -> dict[int, int]:
    """Counts how often the listener is told of the end of each sample."""
    ends = {run.sample: 0 for run in asked.runs}

    def listen(run: Run, token: Token | None) -> None:
        assert ends[run.sample] == 0
        if token is None:
            assert run.finish_reason is not None
            ends[run.sample] += 1

    asked.listener = listen
    return ends


@pytest.mark.parametrize("failing", range(1, 48, 4))
def test_a_search_that_fails_gives_back_all_pages(failing, monkeypatch):
    """A grammar may run out of its budget while a token is added to any of the beams."""
    engine, asked = loop(model()), _searching(max_tokens=12)
    ends, commit, calls = _ends(asked), Decoder.commit, count(1)

    def commit_or_fail(decoder: Decoder, token: int, *record) -> None:
        if next(calls) == failing:
            raise GlassloopError("the grammar takes too long")
        commit(decoder, token, *record)

    monkeypatch.setattr(Decoder, "commit", commit_or_fail)
    engine.add(asked)
    while engine.busy:
        engine.step()
        check_held(engine)
    for run in asked.runs:
        assert (run.finish_reason, run.stop_reason) == ("error", "the grammar takes too long")
        assert isinstance(run.error, GlassloopError)
    assert ends == {0: 1, 1: 1, 2: 1}
    check_held(engine)
    monkeypatch.undo()
    for run in asked.runs:  # the record has the steps that were complete
        assert run.replay().identical, run.replay()


def _cancelled(engine: Loop, asked: Request, steps: int) -> None:
    for _ in range(steps):
        engine.step()
    engine.cancel(asked)


def _overdue(engine: Loop, asked: Request, steps: int) -> None:
    for _ in range(steps):
        engine.step()
    asked.arrived -= 2000
    engine.step()


def _slow(engine: Loop, asked: Request, steps: int) -> None:
    """The next step would come after the time limit, by what the last ones took."""
    for _ in range(max(0, steps - 3)):
        engine.step()
    for _ in range(3):
        if engine.busy:
            engine.step()
            asked.arrived -= 300
    while engine.busy:
        engine.step()


@pytest.mark.parametrize("cut", [_cancelled, _overdue, _slow])
@pytest.mark.parametrize("steps", [0, 1, 2, 5, 9])
@pytest.mark.parametrize("seed", range(3))
def test_a_search_that_was_cut_short_is_replayed_as_far_as_it_went(cut, steps, seed):
    """Some beams have ended by themselves by then, and one of them may be the best."""
    options = {"ignore_eos": False, "logit_bias": {EOS: 13.0}, "temperature": 2.0, "timeout": 1000.0}
    engine, asked = loop(model()), _searching(seed=seed, **options)
    asked = small_llm().prepare([*PROMPT, seed], asked.sampling)
    ends = _ends(asked)
    engine.add(asked)
    cut(engine, asked, steps)
    assert not engine.busy and ends == {0: 1, 1: 1, 2: 1}
    check_held(engine)
    for run in asked.runs:
        verdict = from_bytes(to_bytes([run]))[0].replay(small_llm())
        assert verdict.identical and verdict.tokens == len(run.tokens) + (run.end is not None), verdict
        assert run.tokens or run.end or not run.beams


def test_every_result_of_a_search_that_was_cut_short_says_so():
    """The best one may have ended by itself, but a longer search might have found another."""
    engine, asked = loop(model()), _searching(ignore_eos=False, logit_bias={EOS: 15.0})
    engine.add(asked)
    _cancelled(engine, asked, 5)
    assert asked.runs[0].end is not None
    assert {run.finish_reason for run in asked.runs} == {"cancelled"}
    assert all(run.replay().identical for run in asked.runs)


def test_a_search_without_room_is_replayed_as_far_as_it_went():
    asked = _searching(max_tokens=100)
    engine = loop(model(), pages=7)
    finish(engine, asked)
    assert {run.stop_reason for run in asked.runs} == {"kv memory"} and len(asked.runs[0].tokens) > 2
    for run in asked.runs:
        assert run.replay().identical, run.replay()
    check_held(engine)


def test_a_record_without_its_search_is_compared_token_by_token():
    best, *_ = finish(loop(model()), _searching())
    verdict = replace(best, beams=[]).replay()
    assert verdict.identical and verdict.tokens == 20
    assert best.rewind(7).replay().identical
    other = replace(best, beams=[], tokens=[*best.tokens[:3], best.tokens[9], *best.tokens[4:]])
    assert other.replay().first.at == 3


def test_a_text_less_than_was_asked_for_is_no_end_of_the_others():
    asked = request([65], Sampling(beam_width=4, n=4, choice=["x", "y"]))
    ends, runs = _ends(asked), list(asked.runs)
    finish(loop(model()), asked)
    assert ends == {0: 1, 1: 1, 2: 1, 3: 1} and asked.runs == runs[:2]
    assert {run.stop_reason for run in runs[2:]} == {"there are no more texts"}
    # A search that was cut short does not know how many texts there are.
    asked = request([65], Sampling(beam_width=4, n=4, choice=["xx", "yy"]))
    ends, engine = _ends(asked), loop(model())
    engine.add(asked)
    _cancelled(engine, asked, 1)
    assert ends == {0: 1, 1: 1, 2: 1, 3: 1}
    assert [(run.text, run.finish_reason) for run in asked.runs[2:]] == [("", "cancelled")] * 2


def test_every_run_ends_once_although_the_listener_fails_and_the_search_is_ended_again():
    asked, kept = _searching(max_tokens=5), []
    asked.keep = lambda run: kept.append(run.sample)

    def fail(run: Run, token: Token | None) -> None:
        raise ValueError("a listener with a mistake")

    asked.listener = fail
    engine = loop(model())
    engine.add(asked)
    (task,) = engine.tasks.by_request[asked]
    while engine.busy:
        engine.step()
    task.finish(CANCELLED)
    task.fail(GlassloopError("too late"))
    assert kept == [0, 1, 2]
    assert all(run.error is None and run.finish_reason == "length" for run in asked.runs)
    check_held(engine)


# ── everything at once ──────────────────────────────────────────────────────────────────────────────────────


def _any_search(rng: np.random.Generator) -> Sampling:
    width = int(rng.integers(2, 6))
    given = {"beam_width": width, "max_tokens": int(rng.integers(1, 20)), "min_tokens": 0}
    given |= {"stop_on_repetition": int(rng.choice([0, 2, 3])), "early_stopping": bool(rng.random() < 0.4)}
    if rng.random() < 0.4:  # some of the beams end by themselves
        given["logit_bias"] = {EOS: float(rng.uniform(8, 16))}
    return replace(random_sampling(rng, n=1), n=int(rng.integers(1, width + 1)), **given)


def _record(run: Run) -> tuple[object, ...]:
    """All that must be the same, bit for bit, whatever else runs."""
    ending = (run.finish_reason, run.stop_reason, run.end, run.tail)
    return (run.sample, run.salt, run.tokens, run.prompt_tokens, run.beams, *ending)


@pytest.mark.parametrize("seed", range(24))
def test_any_search_beside_others_is_as_alone_and_replays_wherever_it_is_cut(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, 256, int(rng.integers(1, 90))).tolist() for _ in range(3)]
    searches = [(prompt, _any_search(rng)) for prompt in prompts]
    alone = [[_record(run) for run in finish(loop(model()), request(*each))] for each in searches]
    engine = loop(model(), pages=int(rng.choice([40, 60, 200])))
    asked = [small_llm().prepare(*each) for each in searches]
    others = [request(rng.integers(0, 256, 30).tolist(), Sampling(max_tokens=40)) for _ in range(2)]
    ends = [_ends(each) for each in asked]
    with monkeypatch.context() as patch:
        patch.setattr(NativeOps, "step_rows", int(rng.choice([16, 64, 512])))
        for each in (*asked, *others):
            engine.add(each)
        cut = asked[int(rng.integers(3))]
        for step in count():
            engine.step()
            check_held(engine)
            if not engine.busy:
                break
            if rng.random() < 0.05 and engine.scheduler.running:
                engine.scheduler.preempt(engine.scheduler.running[-1])
            if step == 2 * seed:
                engine.cancel(cut)
    for each, expected, told in zip(asked, alone, ends, strict=True):
        assert set(told.values()) == {1}
        if each is not cut:
            assert [_record(run) for run in each.runs] == expected
        for run in each.runs:
            verdict = run.replay()
            assert verdict.identical, f"{verdict}: {run.sampling}"


def test_the_text_of_a_search_that_was_cut_short_is_that_of_its_tokens():
    """A stop string at the end of one of its texts is part of it: the text did not end by it."""
    engine = loop(model())
    options = {"beam_width": 4, "n": 4, "stop": ["b"], "allowed_token_ids": [97, 98], "temperature": 9}
    asked = request(list(b"x"), Sampling(max_tokens=60, **options))
    engine.add(asked)
    _cancelled(engine, asked, 4)
    assert any(run.tokens and run.tokens[-1].id == ord("b") for run in asked.runs)
    for run in asked.runs:
        assert run.text == bytes(run.token_ids).decode() and run.finish_reason == "cancelled"
