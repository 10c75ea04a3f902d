"""Code of one request that fails, in any way, costs this request alone: never another one, nor the engine."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

import pytest
from engine.random_runs import PROMPT, SmallLLM
from engine.small import drafting_model, finish, loop, model, naive, request, same

from glassloop import GlassloopError, Sampling
from glassloop.decode.stage import REGISTER, stage
from glassloop.decode.stop import Pause
from glassloop.engine.drafting.draft_model import DraftModel
from glassloop.engine.tasks.reading import Reading
from glassloop.engine.thread import Busy, EngineThread

_SAMPLING = Sampling(max_tokens=12, seed=3, temperature=0.7)


@pytest.fixture
def engine():
    made = EngineThread(loop(model(None)), 1024)
    yield made
    made.close()


@pytest.fixture
def own_stage():
    """Registers a stage that calls a function, and forgets it after the test."""

    def register(action: Any) -> Sampling:
        @stage("own", kind="mask")
        def own(candidates, step):
            action(step)
            return candidates

        return Sampling(max_tokens=12, seed=3, temperature=0.7, stages=["default", "own"])

    yield register
    REGISTER.pop("own", None)


def leave(*unused: object) -> None:
    sys.exit("goodbye")


def interrupt(*unused: object) -> None:
    raise KeyboardInterrupt


def end_of(engine: EngineThread, asked: Any) -> threading.Event:
    """Submits a request; returns an event that is set when it has ended."""
    ended, kept = threading.Event(), asked.keep

    def keep(run):
        ended.set()
        if kept is not None:
            kept(run)

    asked.keep = keep
    engine.submit(asked)
    return ended


def check_serves(engine: EngineThread, good: Any = None) -> None:
    """The engine still answers, as ever, and holds nothing."""
    good = good or request(PROMPT, _SAMPLING)
    assert end_of(engine, good).wait(60)
    engine.call(engine.loop.tree.check_integrity)
    assert same(good.runs[0], naive(model(None), good.runs[0]))
    assert engine.loop.tree.held == 0 and engine.load == (0, 0)


@pytest.mark.parametrize(
    ("action", "said"), [(leave, "called sys.exit()"), (interrupt, "raised KeyboardInterrupt")]
)
def test_a_stage_that_ends_its_thread_ends_only_its_request(engine, own_stage, action, said):
    bad, beside = request(PROMPT, own_stage(action)), request(PROMPT[3:], _SAMPLING)
    ended = [end_of(engine, each) for each in (bad, beside)]
    assert all(each.wait(60) for each in ended)
    assert isinstance(bad.runs[0].error, GlassloopError) and bad.runs[0].finish_reason == "error"
    assert str(bad.runs[0].error) == f"stage 'own' {said}"
    assert same(beside.runs[0], naive(model(None), beside.runs[0]))
    check_serves(engine)


@pytest.mark.parametrize("action", [leave, interrupt])
def test_a_listener_that_ends_its_thread_ends_only_its_request(engine, action, caplog):
    bad = request(PROMPT, Sampling(max_tokens=100, seed=1), listener=action)
    assert end_of(engine, bad).wait(60)
    run = bad.runs[0]
    assert run.finish_reason == "cancelled" and run.stop_reason.startswith("the listener failed: it ")
    assert any(run.id in record.getMessage() and record.exc_info for record in caplog.records)
    check_serves(engine)


def test_what_a_listener_raised_is_logged_and_in_the_stop_reason(engine, caplog):
    def listen(run, token):
        raise ValueError("three of them")

    bad = request(PROMPT, Sampling(max_tokens=100, seed=1), listener=listen)
    assert end_of(engine, bad).wait(60)
    assert bad.runs[0].stop_reason == "the listener failed: three of them"
    (record,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert bad.runs[0].id in record.getMessage() and "three of them" in str(record.exc_info)


@pytest.mark.parametrize("action", [leave, interrupt])
def test_a_function_that_keeps_runs_cannot_end_the_engine(engine, action, caplog):
    asked = request(PROMPT, _SAMPLING, keep=action)
    assert end_of(engine, asked).wait(60)
    check_serves(engine)
    assert same(asked.runs[0], naive(model(None), asked.runs[0]))


def test_a_job_that_fails_loses_no_other_job(engine, caplog):
    done = threading.Event()
    beside = request(PROMPT, Sampling(max_tokens=100, seed=1, ignore_eos=True))
    ended = end_of(engine, beside)
    with engine._door:  # so that all come in one turn
        for job in (leave, interrupt, lambda: 1 / 0, done.set):
            engine._post(job)
    assert done.wait(60) and ended.wait(60)
    assert same(beside.runs[0], naive(model(None), beside.runs[0]))
    assert sum("a job on the engine's thread failed" in record.getMessage() for record in caplog.records) == 3


def test_a_reader_of_results_that_ends_its_thread_gets_an_error(engine):
    with pytest.raises(GlassloopError, match=r"called sys\.exit"):
        reading = Reading(PROMPT, len(PROMPT) - 1, leave)
        engine.submit(reading)
        reading.wait()
    check_serves(engine)


# ── waiting on the engine's thread ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "call",
    [
        lambda llm: llm.generate(PROMPT, _SAMPLING),
        lambda llm: list(llm.stream(PROMPT, _SAMPLING)),
        lambda llm: llm.logits(PROMPT),
        lambda llm: llm.embed(PROMPT),
        lambda llm: llm.lens.layers(PROMPT),
        lambda llm: llm.engine.call(lambda: None),
        lambda llm: llm.solve(PROMPT, method="vote", n=2),
        lambda llm: list(llm.generate_iter([PROMPT], _SAMPLING)),
    ],
)
def test_a_call_that_would_wait_for_ever_says_so(call):
    llm, found = SmallLLM(), []

    def listen(run, token):
        if token is not None and not found:
            try:
                call(llm)
            except GlassloopError as error:
                found.append(str(error))

    asked = request(PROMPT, _SAMPLING, listener=listen)
    assert end_of(llm.engine, asked).wait(60)
    assert found and "was made on the engine's thread, by a listener" in found[0]
    assert same(asked.runs[0], naive(model(None), asked.runs[0]))
    check_serves(llm.engine)
    llm.close()


def test_cancelling_on_the_engines_thread_does_not_wait(engine):
    def listen(run, token):
        engine.cancel(asked, wait=True)

    asked = request(PROMPT, Sampling(max_tokens=100, seed=1, ignore_eos=True), listener=listen)
    assert end_of(engine, asked).wait(60) and asked.runs[0].finish_reason == "cancelled"
    check_serves(engine)


# ── drafts ─────────────────────────────────────────────────────────────────────────────────────────────────


def _drafting(kind: str) -> Any:
    if kind == "model":
        made = loop(model(None), draft=DraftModel(model(None), 1 << 20))
    else:
        made = loop(drafting_model() if kind == "chain" else model(None))
    made.drafts.step_cost.cost = lambda rows: 1.0  # drafts seem to pay always
    return made


@pytest.mark.parametrize("kind", ["model", "chain"])
@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_a_stage_that_raises_while_drafts_are_made_costs_only_its_own_request(own_stage, kind, error):
    def breaks(step):
        if step.history.generated_length >= 4:
            raise error

    engine = _drafting(kind)
    bad, good = request(PROMPT, own_stage(breaks)), request(PROMPT[2:], _SAMPLING)
    finish(engine, bad, good)
    assert bad.runs[0].finish_reason == "error" and len(bad.runs[0].tokens) == 4
    assert same(good.runs[0], naive(model(None), good.runs[0]))
    assert engine.tree.held == 0
    engine.tree.check_integrity()


@pytest.mark.parametrize("kind", ["model", "chain"])
def test_no_error_of_a_drafter_ends_a_step(kind, monkeypatch, caplog):
    engine = _drafting(kind)
    drafter = engine.drafts
    tree = getattr(drafter, "tree", engine.tree)
    calls = []

    def fails(*args):
        calls.append(args)
        raise RuntimeError("on purpose")

    broken, name = {
        "model": (drafter, "_grow"),
        "chain": (getattr(drafter, "_chain", None), "draw"),
    }[kind]
    monkeypatch.setattr(broken, name, fails)
    runs = finish(engine, request(PROMPT, _SAMPLING), request(PROMPT[2:], _SAMPLING))
    assert calls and all(same(run, naive(model(None), run)) for run in runs)
    assert tree.held == 0 and not tree.paths
    assert any("drafts of a step could not be made" in record.getMessage() for record in caplog.records)


# ── readings that belong together ──────────────────────────────────────────────────────────────────────────


def test_readings_that_were_begun_together_end_together():
    from glassloop.engine.logits import compute_all

    engine = EngineThread(loop(model(None)), most_waiting=1024)
    taken: list[int] = []

    def breaks(found):
        raise ZeroDivisionError

    readings = [Reading(PROMPT, 0, breaks if number == 1 else taken.append) for number in range(6)]
    with pytest.raises(ZeroDivisionError):
        compute_all(engine, readings)
    assert all(reading.ended for reading in readings) and engine.load == (0, 0)
    engine.most_waiting = 3
    gate = threading.Event()
    engine.after_step(gate.wait)
    refused = [Reading(PROMPT, 0, taken.append) for _ in range(6)]
    with pytest.raises(Busy):
        try:
            threading.Timer(0.2, gate.set).start()
            compute_all(engine, refused)
        finally:
            assert all(reading.ended for reading in refused[:3])
    assert engine.load == (0, 0) and engine.loop.tree.held == 0
    engine.close()


# ── one of several samples ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stopped", [0, 1, 3])
@pytest.mark.parametrize("after", [0, 1, 4])
def test_one_sample_can_be_stopped_and_the_others_go_on(stopped, after):
    """Also the first one, before it has computed the prefix that the others wait for, and one that waits."""
    engine = loop(model(None))
    sampling = Sampling(n=4, seed=2, max_tokens=20, ignore_eos=True)
    asked = request(PROMPT, sampling)
    engine.add(asked)
    for _ in range(after):
        engine.step()
    engine.cancel(asked, asked.runs[stopped])
    assert asked.runs[stopped].finish_reason == "cancelled"
    while engine.busy:
        engine.step()
    for number, run in enumerate(asked.runs):
        expected = naive(model(None), run)
        if number == stopped:
            assert run.token_ids == expected.token_ids[: len(run.tokens)] and len(run.tokens) < 20
        else:
            assert same(run, expected)
    assert engine.tree.held == 0 and not engine.scheduler.waiting and not engine.scheduler.running


def test_each_sample_pauses_by_itself_and_a_stopped_beam_search_ends_as_a_whole():
    engine = loop(model(None))
    asked = request(PROMPT, Sampling(n=3, seed=2, max_tokens=20, ignore_eos=True), pause=Pause(5))
    runs = finish(engine, asked)
    assert [len(run.tokens) for run in runs] == [5, 5, 5]
    assert {run.stop_reason for run in runs} == {"paused"}
    beams = request(PROMPT, Sampling(n=2, beam_width=3, max_tokens=20, ignore_eos=True))
    engine.add(beams)
    for _ in range(4):
        engine.step()
    engine.cancel(beams, beams.runs[1])
    assert [run.finish_reason for run in beams.runs] == ["cancelled"] * 2 and not engine.busy


@pytest.mark.parametrize("pause", range(1, 30, 4))
def test_a_run_that_takes_tokens_back_pauses_and_goes_on_as_if_it_had_not(pause):
    llm = SmallLLM()
    sampling = Sampling(seed=6, max_tokens=60, ignore_eos=True, temperature=1.2)
    sampling = sampling.changed({"revise": 3, "revise_window": 6, "revise_bits": 1.0})
    expected = llm.generate(PROMPT, sampling)
    assert expected.revised == 3
    asked = llm.prepare(PROMPT, sampling)
    asked.pause = Pause(pause)
    tokens = list(llm.follow(asked))
    assert tokens
    (run,) = asked.runs
    while run.finish_reason == "cancelled":
        rest = llm.prepare_rest(run)
        rest.pause = Pause(len(run.tokens) + pause)
        run.finish_reason = None
        list(llm.follow(rest))
        (run,) = rest.runs
    assert run.token_ids == expected.token_ids and run.revised == 3
    llm.close()
