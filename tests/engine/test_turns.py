"""Clients take turns: what one of them asks for, in however many rows, leaves the others their share of the
time. Steps have a cost here that depends on their rows alone, so that no machine's load decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from engine.small import finish, loop, model, naive, request, same
from engine.test_one_answer import _by_diffusion

from glassloop.decode.diffusion import Diffusion
from glassloop.decode.sampling import Sampling
from glassloop.engine.loop import Loop
from glassloop.engine.masked import Mask
from glassloop.engine.reading import Reading
from glassloop.engine.request import Request
from glassloop.engine.turns import Turns

STEP, ROW = 0.003, 0.0005  # seconds of a step, and of each of its rows

Asked = Request | Reading


@contextmanager
def simulated(engine: Loop) -> Iterator[list[float]]:
    """Makes steps cost what their rows say. Yields the costs of all steps so far."""
    plan, spent, costs, rows = engine.scheduler.plan, engine.scheduler.turns.spent, list[float](), [0]

    def planned():
        calls = plan()
        rows[0] = sum(len(work.ids) for call in calls for work in call.works)
        return calls

    def told(_: float) -> None:
        costs.append(STEP + ROW * rows[0])
        spent(costs[-1])

    engine.scheduler.plan = planned  # type: ignore[method-assign]
    engine.scheduler.turns.spent = told  # type: ignore[method-assign]
    yield costs


def plain(number: int) -> Request:
    prompt = list(b"the sea is %d" % number)
    return request(
        prompt, Sampling(seed=number, max_tokens=100, ignore_eos=True, min_tokens=100), drafts=False
    )


def samples(number: int) -> Request:
    sampling = Sampling(seed=number, n=60, max_tokens=60, ignore_eos=True, min_tokens=60)
    return request(list(b"many of them %d" % number), sampling, drafts=False)


def beams(number: int) -> Request:
    return request(list(b"beams %d" % number), Sampling(beam_width=50, max_tokens=40, ignore_eos=True))


def prompts(number: int) -> Request:
    ids = np.random.default_rng(number).integers(0, 256, 180).tolist()
    return request(ids, Sampling(seed=number, max_tokens=1))


def scored(number: int) -> Request:
    ids = np.random.default_rng(number).integers(0, 256, 180).tolist()
    return request(ids, Sampling(seed=number, max_tokens=1, prompt_logprobs=2))


def diffused(number: int) -> Request:
    asked = request(list(b"masks %d" % number), Sampling(seed=number, max_tokens=100))
    return _by_diffusion(asked, Diffusion(block=100, passes=10, revise=4), Mask(0))


def readings(number: int) -> Reading:
    return Reading(np.random.default_rng(number).integers(0, 256, 180).tolist(), 0, lambda rows: None)


def rate(make: Callable[[int], Asked], count: int) -> tuple[float, float]:
    """Returns the tokens per second of a victim beside `count` clients that each have a request of this kind
    all the time, and its longest gap."""
    engine = loop(model(), pages=4000, most_running=64)
    victim = plain(0)
    victim.owner = "victim"
    running: dict[int, Asked] = {}
    gaps, since, tokens, total = [0.0], 0.0, 0, 0.0
    with simulated(engine) as costs:
        number = 0
        for step in range(600):
            for client in range(count):
                asked = running.get(client)
                if asked is None or asked.ended:
                    number += 1
                    running[client] = asked = make(number)
                    asked.owner = f"client {client}"
                    engine.add(asked)
            if step == 150:  # the others are at full speed by then
                engine.add(victim)
                total = sum(costs)
            before = len(victim.runs[0].tokens)
            engine.step()
            since += costs[-1] if costs else 0.0
            if step >= 150 and len(victim.runs[0].tokens) > before:
                gaps.append(since)
                since = 0.0
                tokens += len(victim.runs[0].tokens) - before
            if step < 150:
                since = 0.0
            if victim.ended:
                break
        total = sum(costs) - total
    return tokens / total, max(gaps)


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("make", [samples, beams, prompts, scored, diffused, readings])
def test_a_client_has_at_least_half_of_its_fair_share(make, count):
    fair, _ = rate(plain, count)
    share, gap = rate(make, count)
    assert share >= 0.5 * fair, (share / fair, gap)
    assert gap < 0.5


def test_one_client_takes_no_turns(monkeypatch):
    """The step of a single client, or of Python, is planned as ever."""
    monkeypatch.setattr(Turns, "begin", lambda *_: pytest.fail("there is one owner"))
    runs = finish(loop(model()), samples(1), plain(2))
    assert all(run.finish_reason == "length" for run in runs)


def test_places_are_shared_by_clients():
    """With as many samples as there are places, another client's request still gets a place at once."""
    engine = loop(model(), pages=4000, most_running=8)
    greedy, other = samples(1), plain(2)
    greedy.owner, other.owner = "greedy", "other"
    engine.add(greedy)
    for _ in range(5):
        engine.step()
    engine.add(other)
    for _ in range(12):
        engine.step()
    assert other.runs[0].tokens
    runs = finish(engine)
    assert not runs and engine.tree.held == 0
    for asked in (greedy, other):
        for run in asked.runs[:5]:
            assert same(run, naive(model(), run))


def test_a_step_of_prompts_is_short_on_a_server(monkeypatch):
    """A client that comes waits for the step that is under way. Here a row takes a millisecond."""
    spent = Turns.spent
    monkeypatch.setattr(Turns, "spent", lambda turns, _: spent(turns, 0.001 * turns.rows))
    for owner, most in (("client", 250), ("", 512)):
        engine, rows = loop(model(), pages=4000), list[int]()
        for number in range(30):
            asked = prompts(number)
            asked.owner = owner
            engine.add(asked)
        while engine.busy:
            engine.step()
            rows.append(engine.scheduler.turns.rows)
        assert rows[0] == 512 and max(rows[1:]) <= most
        assert most == 250 or max(rows[1:]) == 512
