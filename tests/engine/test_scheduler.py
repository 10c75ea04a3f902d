"""Who computes what, and when: order, fairness, pressure."""

from __future__ import annotations

import numpy as np
import pytest
from engine.small import finish, loop, model, naive, request, same

from glassloop import Sampling
from glassloop.decode.stop import Ending
from glassloop.engine.tasks import task as task_module
from glassloop.engine.thread import EngineThread
from glassloop.ops.native.ops import NativeOps


def _prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, length).tolist()


def test_a_long_prompt_delays_nobody_by_more_than_a_step(monkeypatch):
    monkeypatch.setattr(NativeOps, "rows_beside", 16)
    engine = loop(model(None))
    talker = request(_prompt(5), Sampling(max_tokens=40, seed=1, ignore_eos=True), drafts=False)
    engine.add(talker)
    engine.step()
    long = request(_prompt(160, 1), Sampling(max_tokens=2, seed=1))
    engine.add(long)
    steps = 0
    while not long.runs[0].tokens:
        before, rows = len(talker.runs[0].tokens), engine.counters.rows
        engine.step()
        steps += 1
        assert len(talker.runs[0].tokens) == before + 1  # a token in every step
        assert engine.counters.rows - rows <= 17
    assert steps == 10
    while engine.busy:
        engine.step()
    assert all(same(run, naive(model(None), run)) for run in (*long.runs, *talker.runs))


def test_alone_a_prompt_takes_as_few_steps_as_it_can():
    engine = loop(model(None))
    finish(engine, request(_prompt(190), Sampling(max_tokens=1, seed=1)))
    assert engine.counters.steps == 1


def test_first_come_first_served_but_for_priority():
    engine = loop(model(None), most_running=1)
    order: list[str] = []

    def asked(name: str, priority: int = 0):
        return request(
            _prompt(4),
            Sampling(max_tokens=2, seed=1, ignore_eos=True),
            priority=priority,
            listener=lambda run, token: order.append(name) if token is None else None,
        )

    finish(engine, asked("first"), asked("second"), asked("urgent", 5), asked("third"))
    assert order == ["urgent", "first", "second", "third"]


def test_the_youngest_gives_way_and_comes_back_with_the_same_output():
    small = model(None)
    engine = loop(small, pages=7)
    old = request(_prompt(60, 1), Sampling(max_tokens=90, seed=1, ignore_eos=True))
    young = request(_prompt(60, 2), Sampling(max_tokens=90, seed=1, ignore_eos=True))
    runs = finish(engine, old, young)
    assert runs[0].timings.preempted == 0 and runs[1].timings.preempted > 0
    assert all(same(run, naive(small, run)) for run in runs)


def test_what_no_memory_could_hold_ends_with_what_there_is():
    engine = loop(model(None), pages=3)
    (run,) = finish(engine, request(_prompt(40), Sampling(max_tokens=150, seed=1, ignore_eos=True)))
    assert (run.finish_reason, run.stop_reason) == ("length", "kv memory")
    assert run.tokens == naive(model(None), run).tokens[: len(run.tokens)] and len(run.tokens) >= 55
    engine.tree.check_integrity()


def test_logits_of_many_rows_come_a_few_at_a_time(monkeypatch):
    """They are as wide as the vocabulary."""
    monkeypatch.setattr(task_module, "_SCORED_ROWS", 8)
    engine = loop(model(None))
    (run,) = finish(engine, request(_prompt(50), Sampling(max_tokens=1, seed=1, prompt_logprobs=1)))
    assert len(run.prompt_tokens) == 49 and engine.counters.steps == 7


@pytest.mark.parametrize("scored", [0, 2])
def test_samples_compute_their_prompt_once(scored):
    """The first sample computes the prompt; each other one only its last token again, for the logits."""
    small = model(None)
    engine = loop(small)
    sampling = Sampling(n=4, max_tokens=3, seed=1, ignore_eos=True, prompt_logprobs=scored)
    asked = request(_prompt(100), sampling, drafts=False)
    runs = finish(engine, asked)
    assert engine.counters.rows == 100 + 3 + 4 * 2
    assert (
        all(same(run, naive(small, run)) for run in runs) and len({tuple(run.token_ids) for run in runs}) == 4
    )
    assert all(run.prompt_tokens is runs[0].prompt_tokens for run in runs)
    assert len(runs[0].prompt_tokens) == (99 if scored else 0)


@pytest.mark.parametrize("fault", ["cancelled", "scoring fails", "choosing fails", "preempted", "no room"])
def test_samples_go_on_without_the_first(fault, monkeypatch):
    monkeypatch.setattr(NativeOps, "step_rows", 32)
    small = model(None)
    engine = loop(small, pages=12)
    sampling = Sampling(n=3, max_tokens=12, seed=1, ignore_eos=True, prompt_logprobs=1)
    asked = request(_prompt(100), sampling)
    engine.add(asked)
    first = engine.tasks.by_request[asked][0]
    engine.step()
    assert 0 < first.branch.path.length < 100

    def broken(*given):
        raise ZeroDivisionError("broken on purpose")

    if fault == "cancelled":
        engine.tasks.attempt(first, first.finish, Ending("cancelled", "by the test"))
    elif fault == "preempted":
        engine.scheduler.preempt(first)
    elif fault == "no room":
        engine.tasks.attempt(first, first.finish, Ending("length", "kv memory"))
    else:
        monkeypatch.setattr(
            first._writer.decoder, "record_prompt" if fault == "scoring fails" else "row_request", broken
        )
    while engine.busy:
        engine.step()
        engine.tree.check_integrity()
    assert engine.tree.held == 0
    reasons = [run.finish_reason for run in asked.runs]
    ends = {
        "cancelled": "cancelled",
        "scoring fails": "error",
        "choosing fails": "error",
        "no room": "length",
    }
    assert reasons == [ends.get(fault, "length"), "length", "length"]
    assert asked.runs[0].timings.preempted == (fault == "preempted")
    whole = asked.runs if fault == "preempted" else asked.runs[1:]
    assert all(same(run, naive(small, run)) and len(run.prompt_tokens) == 99 for run in whole)
    assert asked.runs[1].prompt_tokens is asked.runs[2].prompt_tokens


def test_a_request_that_is_cancelled_ends_the_samples_that_wait(monkeypatch):
    monkeypatch.setattr(NativeOps, "step_rows", 32)
    engine = loop(model(None))
    ends: list[int] = []
    asked = request(
        _prompt(100),
        Sampling(n=3, max_tokens=12, seed=1),
        listener=lambda run, token: ends.append(run.sample) if token is None else None,
    )
    engine.add(asked)
    engine.step()
    engine.cancel(asked)
    assert ends == [0, 1, 2] and [run.finish_reason for run in asked.runs] == ["cancelled"] * 3
    assert not engine.busy and engine.tree.held == 0
    assert not engine.scheduler.waiting and not engine.scheduler.running and engine.counters.finished == 1


def test_samples_wait_for_their_prompt_without_a_place_in_the_queue(monkeypatch):
    """Another request is not held up by them, and they do not count as waiting requests."""
    monkeypatch.setattr(NativeOps, "step_rows", 32)
    engine = loop(model(None))
    many = request(_prompt(100), Sampling(n=8, max_tokens=4, seed=1, ignore_eos=True))
    other = request(_prompt(6, 1), Sampling(max_tokens=1, seed=1))
    engine.add(many)
    engine.step()
    assert len(engine.scheduler.running) == 1 and not engine.scheduler.waiting
    engine.add(other)
    engine.step()
    assert other.ended and not many.runs[0].tokens


def test_samples_that_wait_for_a_place_are_no_waiting_requests():
    engine = loop(model(None), most_running=1)
    thread = EngineThread(engine, most_waiting=1)
    many = request(_prompt(10), Sampling(n=4, max_tokens=4, seed=1, ignore_eos=True))
    engine.add(many)
    assert thread.load == (1, 0)
    while engine.busy:
        engine.step()
        running = len(engine.scheduler.running)
        assert thread.load == ((0, running) if running or not engine.busy else (1, 0))
    assert all(same(run, naive(model(None), run)) for run in many.runs)


def test_forced_tokens_have_their_own_records_in_every_sample():
    small = model(None)
    engine = loop(small)
    asked = request(_prompt(50), Sampling(n=3, max_tokens=8, seed=1, ignore_eos=True), forced=[1, 2, 3])
    runs = finish(engine, asked)
    for run in runs:
        assert same(run, naive(small, run, [1, 2, 3])) and run.token_ids[:3] == [1, 2, 3]
        assert [token.sample for token in run.tokens] == [run.sample] * 8
    assert len({run.tokens[0].luck for run in runs}) == 3


def test_samples_run_together_where_only_one_prompt_has_room():
    """Three pages of six hold the prompt; the samples share them."""
    small = model(None)
    engine = loop(small, pages=8)
    runs = finish(engine, request(_prompt(96), Sampling(n=4, max_tokens=6, seed=1, ignore_eos=True)))
    assert engine.counters.steps < 2 * 6 and all(same(run, naive(small, run)) for run in runs)
