"""Who computes what, and when: order, fairness, pressure."""

from __future__ import annotations

import numpy as np
from engine.small import finish, loop, model, naive, request, same

from glassloop import Sampling
from glassloop.engine import scheduler


def _prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, length).tolist()


def test_a_long_prompt_delays_nobody_by_more_than_a_step(monkeypatch):
    monkeypatch.setattr(scheduler, "_ROWS_BESIDE", 16)
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
    assert same(long.runs[0], naive(model(None), long.runs[0])) or not long.ended


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
    monkeypatch.setattr(scheduler, "_SCORED_ROWS", 8)
    engine = loop(model(None))
    (run,) = finish(engine, request(_prompt(50), Sampling(max_tokens=1, seed=1, prompt_logprobs=1)))
    assert len(run.prompt_tokens) == 49 and engine.counters.steps == 7
