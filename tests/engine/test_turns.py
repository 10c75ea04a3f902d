"""Clients take turns: what one of them asks for, in however many rows, leaves the others their share of the
time. Steps have a cost here that depends on their rows alone, so that no machine's load decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import numpy as np
import pytest
from engine.small import finish, loop, model, naive, request, same
from engine.test_one_answer import _by_diffusion

from glassloop.decode.diffusion import Diffusion
from glassloop.decode.sampling import Sampling
from glassloop.decode.stage import REGISTER, stage
from glassloop.engine import turns as turns_module
from glassloop.engine.loop import Loop
from glassloop.engine.request import Request
from glassloop.engine.tasks.masked import Mask
from glassloop.engine.tasks.reading import Reading
from glassloop.engine.turns import Turns

STEP, ROW = 0.003, 0.0005  # seconds of a step, and of each of its rows
SLOW = 0.1  # seconds of a stage that takes long, for each request and step

Asked = Request | Reading


@contextmanager
def simulated(engine: Loop) -> Iterator[list[float]]:
    """Makes steps cost what their rows say. Yields the costs of all steps so far."""
    plan, turns, costs, rows, own = engine.scheduler.plan, engine.scheduler.turns, list[float](), [0], [0.0]
    spent, charge = turns.spent, turns.charge

    def planned():
        calls = plan()
        rows[0] = sum(len(work.ids) for call in calls for work in call.works)
        return calls

    def charged(owner: str, stages: dict[str, float]) -> None:
        own[0] += SLOW
        charge(owner, dict.fromkeys(stages, SLOW))

    def told(_: float) -> None:
        costs.append(STEP + ROW * rows[0] + own[0])
        own[0] = 0.0
        spent(costs[-1])

    engine.scheduler.plan = planned  # type: ignore[method-assign]
    turns.spent, turns.charge = told, charged  # type: ignore[method-assign]
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


def staged(number: int) -> Request:
    sampling = Sampling(seed=number, max_tokens=100, ignore_eos=True, stages=["default", "unhurried"])
    return request(list(b"stages %d" % number), sampling, drafts=False)


def staged_at_once(number: int) -> Request:
    """One token, again and again: what its stage took is owed by its client, whatever it asks next."""
    sampling = Sampling(seed=number, max_tokens=1, ignore_eos=True, stages=["default", "unhurried"])
    return request(list(b"stages %d" % number), sampling, drafts=False)


@pytest.fixture(autouse=True)
def unhurried() -> Iterator[None]:
    stage("unhurried", kind="mask")(lambda candidates, step: candidates)
    yield
    REGISTER.pop("unhurried", None)


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
@pytest.mark.parametrize(
    "make", [samples, beams, prompts, scored, diffused, staged, staged_at_once, readings]
)
def test_a_client_has_at_least_half_of_its_fair_share(make, count):
    fair, _ = rate(plain, count)
    share, gap = rate(make, count)
    assert share >= 0.5 * fair, (share / fair, gap)
    assert gap < 0.5


@pytest.mark.parametrize("busy", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("kinds", [[samples], [samples, beams, prompts, diffused, scored, readings]])
def test_a_short_prompt_waits_for_few_steps_even_on_a_machine_with_other_work(kinds, busy, monkeypatch):
    """There, some steps take far longer than their rows explain."""
    rng, spent = Random(1), Turns.spent

    def took(turns: Turns, _: float) -> None:
        seconds = STEP + ROW * turns.rows
        spent(turns, seconds * (rng.choice([5, 20, 60]) if rng.random() < busy else 1))

    monkeypatch.setattr(Turns, "spent", took)
    engine, running, waits = loop(model(), pages=4000, most_running=64), dict[int, Asked](), list[int]()
    victim, number, since = None, 0, 0
    for step in range(400):
        for client, kind in enumerate(kinds):
            if client not in running or running[client].ended:
                number += 1
                running[client] = asked = kind(number)
                asked.owner = f"client {client}"
                engine.add(asked)
        if step >= 50 and (victim is None or victim.ended):
            waits.append(step - since)
            number, since = number + 1, step
            victim = request(list(b"%d seas" % number), Sampling(seed=number, max_tokens=1), drafts=False)
            victim.owner = "victim"
            engine.add(victim)
        engine.step()
    assert max([*waits[1:], 400 - since]) < 50


def test_a_client_with_slow_stages_gets_its_tokens_too():
    engine = loop(model(), pages=4000)
    slow, others = staged(1), [plain(2), plain(3)]
    with simulated(engine):
        for owner, asked in zip("abc", [slow, *others], strict=True):
            asked.owner = owner
            engine.add(asked)
        while any(not other.ended for other in others):
            engine.step()
        assert 1 <= len(slow.runs[0].tokens) < 20
        while engine.busy:
            engine.step()
    for asked in (slow, *others):
        assert same(asked.runs[0], naive(model(), asked.runs[0]))


def test_stages_within_their_share_of_a_step_delay_nobody():
    turns = Turns()
    for _ in range(5):
        turns.begin(["a", "b"])
        turns.planned({"a": 1, "b": 1}, {"a", "b"}, False, [])
        turns.charge("a", {"quick": 0.001})
        turns.spent(0.005)
        assert not turns.owes("a") and not turns.owes("b")


def test_the_log_tells_once_a_minute_which_stage_exceeds_its_budget(monkeypatch, caplog):
    clock = [0.0]
    monkeypatch.setattr(turns_module, "monotonic", lambda: clock[0])
    turns = Turns()
    for now in (0.0, 1.0, 59.0, 61.0):
        clock[0] = now
        turns.charge("a", {"unhurried": 0.2, "quick": 0.001})
    turns.charge("b", {"another": 0.06})
    assert [message.split(";")[0] for message in caplog.messages] == [
        "stage 'unhurried' took 200 ms in a step",
        "stage 'unhurried' took 200 ms in a step",
        "stage 'another' took 60 ms in a step",
    ]
    assert "its budget is 50 ms" in caplog.messages[0]


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
    with simulated(engine):
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
