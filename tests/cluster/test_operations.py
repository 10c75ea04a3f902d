"""Searches, edits and adapters on replicas: the same answers as from one engine, also when a replica dies."""

from __future__ import annotations

import asyncio
import time
from threading import Event, Timer

import pytest
from cluster.test_handover import PROMPT, Cluster, alone, kill, model, same, single
from cluster.test_server import PROMPT as TEXT
from cluster.test_server import Site, listening
from engine.peft_adapter import write_adapter
from hostile.tiny import write_tiny_holes
from waiting import wait_until

from glassloop import LLM, Sampling
from glassloop.cluster import pickling
from glassloop.cluster.calls import MOST_DEATHS
from glassloop.cluster.pickling import dumps, loads
from glassloop.diffuse.write import by_diffusion
from glassloop.edit.infill import infill
from glassloop.engine.deadline import Cancelled, Deadline
from glassloop.engine.protocol import Unavailable
from glassloop.errors import GlassloopError
from glassloop.search.solve import solve
from glassloop.server.app import make_app

__all__ = ["model", "single"]  # fixtures
SEARCHES = {
    "vote": {"method": "vote", "n": 4},
    "confidence": {"method": "confidence", "n": 6, "warmup": 3, "wave": 2, "window": 4, "stride": 6},
    "tree": {"method": "tree", "verify": "contains:a", "step": " "},
    "cut": {"method": "vote", "n": 4, "budget": {"tokens": 50}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, single):
    return write_adapter(tmp_path_factory.mktemp("adapters") / "sea", single.config, 4, "q v down", 1)


@pytest.fixture(scope="module")
def holes(tmp_path_factory):
    return write_tiny_holes(tmp_path_factory.mktemp("holes") / "holes.safetensors")


@pytest.fixture(scope="module")
def cluster(model, folder, holes):
    options = {"adapters": {"sea": folder}, "holes": holes}
    made = Cluster(model, stall=1.5, patience=10.0, replica=options)
    yield made
    made.close()


# ── searches ───────────────────────────────────────────────────────────────────────────────────────────────


def told(solution):
    """What must be equal of two searches: every path with its numbers, and every decision."""
    paths = [(path.run.token_ids, path.run.tokens, path.value, path.ended_by) for path in solution.paths]
    decisions = [(each.round, each.action, each.path, each.tokens) for each in solution.decisions]
    return paths, decisions, solution.votes, solution.value


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_on_replicas_is_that_of_one_engine(cluster, single, name, dies):
    cluster.renew()
    options = {
        **SEARCHES[name],
        "extract": "text",
        "sampling": Sampling(seed=5, max_tokens=30, temperature=1.1, ignore_eos=True),
        "chat": False,
    }
    killed = []

    def watch(search):
        if dies and search.round == 1 and not killed:
            killed.append(cluster.transport.jobs)
            Timer(0.02, lambda: kill(cluster, next(iter(cluster.transport.replicas)))).start()

    assert told(solve(cluster.engine, TEXT, watch=watch, **options)) == told(solve(single, TEXT, **options))
    cluster.renew()


def test_searches_edits_and_diffusion_over_http(model, single, holes, written):
    site = Site(model, holes=holes)
    chat = {
        "messages": [{"role": "user", "content": "hello"}],
        "seed": 5,
        "max_tokens": 20,
        "search": {"method": "vote", "n": 3, "extract": "text", "paths": True},
    }
    edit = {"before": TEXT, "after": " and slept", "tokens": 3, "candidates": 3, "sampling": {"seed": 3}}
    repair = {"text": TEXT, "budget": 400, "candidates": 2, "check": "contains:moon"}
    try:
        with listening(make_app(site.service)) as client:
            found = client.post("/v1/chat/completions", json=chat).json()
            options = Sampling(seed=5, max_tokens=20, temperature=0.7)
            expected = single.solve(chat["messages"], "vote", n=3, extract="text", sampling=options)
            assert [path["text"] for path in found["search"]["paths"]] == [
                path.text for path in expected.paths
            ]
            assert client.get(f"/api/runs/{found['search']['id']}/search").json()["search"]["votes"]
            with client.stream("POST", "/v1/chat/completions", json={**chat, "stream": True}) as stream:
                assert "[DONE]" in "".join(stream.iter_text())
            made = client.post("/api/edits/infill", json=edit).json()
            same_edit = infill(
                single, TEXT, " and slept", 3, candidates=3, sampling=Sampling(seed=3, temperature=0.8)
            )
            assert made["text"] == same_edit.text
            bits = [each["own_bits"] for each in made["proposals"]]
            assert bits == [each.own_bits for each in same_edit.proposals]
            run = client.get(f"/api/runs/{made['run']}").json()
            assert run["tree"] == made["tree"]
            assert client.get(f"/api/runs/{made['run']}/explain/1").status_code == 200
            answer = client.post("/api/edits/repair", json=repair)
            assert answer.status_code == 200, answer.text
            wrong = client.post(
                "/api/edits/infill", json={**edit, "method": "metropolis", "proposer": "diffusion"}
            )
            assert wrong.status_code == 400 and "proposer" in wrong.text  # the replica's own error
            body = {
                "token_ids": PROMPT,
                "sampling": {"seed": 4, "max_tokens": 12},
                "diffusion": DIFFUSION,
                "stream": True,
            }
            (other,) = written(Sampling(seed=4, max_tokens=12))
            with client.stream("POST", "/api/diffusions", json=body) as stream:
                lines = "".join(stream.iter_text())
            assert lines.count("event: pass") == len(other.passes)
            run = lines.split('"run":"')[1].split('"')[0]
            assert client.get(f"/api/runs/{run}").json()["text"] == other.text
            assert len(client.get(f"/api/runs/{run}/passes").json()["frames"]) == len(other.passes)
    finally:
        site.close()


# ── calls ──────────────────────────────────────────────────────────────────────────────────────────────────


def count_slowly(llm: LLM, most: int, *, deadline: Deadline, on_event, wait: float = 0.02) -> int:
    for number in range(most):
        on_event(number)
        time.sleep(wait)
        deadline.check()
    return most


def wait_for_ever(llm: LLM, *, deadline: Deadline) -> None:
    while True:
        time.sleep(0.01)
        deadline.check()


def fail(llm: LLM, *, deadline: Deadline) -> None:
    raise GlassloopError.about("field", "is wrong")


def test_events_come_once_each_although_the_replica_dies(cluster):
    cluster.renew()
    events: list[int] = []

    def on_event(number: int) -> None:
        events.append(number)
        if number == 10:
            kill(cluster, cluster.transport.asked[-1][0])

    assert cluster.engine.apply(count_slowly, 30, on_event=on_event) == 30
    assert events == list(range(30))
    first, second = (name for name, _ in cluster.transport.asked[-2:])
    assert first != second
    cluster.renew()


def test_a_question_is_asked_again_when_its_replica_does_not_answer(cluster):
    cluster.renew()
    events: list[int] = []

    def on_event(number: int) -> None:
        events.append(number)
        if number == 10 and not cluster.transport.silent:
            cluster.transport.silent.add(cluster.transport.asked[-1][0])

    try:
        assert cluster.engine.apply(count_slowly, 40, on_event=on_event) == 40
    finally:
        cluster.transport.silent.clear()
    assert events == list(range(40))
    wait_until(lambda: cluster.engine.problem is None)


def test_a_call_that_kills_every_replica_ends_with_an_error(cluster):
    deaths = []

    def on_event(number: int) -> None:
        if number == 0 or len(deaths) < MOST_DEATHS:
            name = cluster.transport.asked[-1][0]
            deaths.append(name)
            cluster.transport.add(f"new {len(deaths)}")
            kill(cluster, name)

    before = len(cluster.transport.asked)
    with pytest.raises(Unavailable, match="died one after the other"):
        cluster.engine.apply(count_slowly, 500, on_event=on_event, wait=0.05)
    assert len(cluster.transport.asked) - before == MOST_DEATHS
    cluster.renew()


def test_a_cancelled_call_ends_on_the_replica_and_errors_are_those_of_the_function(cluster):
    cluster.renew()
    deadline = Deadline(60.0, "the request")
    Timer(0.2, deadline.cancel).start()
    with pytest.raises(Cancelled):
        cluster.engine.apply(wait_for_ever, deadline=deadline)
    with pytest.raises(GlassloopError, match="field is wrong") as raised:
        cluster.engine.apply(fail)
    assert raised.value.field == "field"
    replicas = cluster.transport.replicas.values()
    wait_until(lambda: not any(replica._operating._work_queue.qsize() for replica in replicas))
    wait_until(lambda: sum(cluster.transport.board._load.values()) == 0)


def test_what_a_replica_tells_travels_in_parts_that_fit_into_a_message(monkeypatch):
    monkeypatch.setattr(pickling, "_PART", 100)
    values = [bytes(size) for size in (0, 50, 99, 100, 1000, 0)]
    parts = [part for value in values for part in pickling.in_parts(value)]
    assert max(len(part.data) for part in parts) == 100

    async def sent():
        for part in parts:
            yield part

    async def received():
        return [value async for value in pickling.from_parts(sent())]

    assert asyncio.run(received()) == values


def test_runs_travel_with_every_number(single):
    run = single.generate(PROMPT, Sampling(seed=2, max_tokens=20, n=2, ignore_eos=True))
    other, same_one, plain = loads(dumps((run, [run], {"a": 1})), single)
    assert other is same_one[0] and plain == {"a": 1}
    same([other], [run])
    assert other.id == run.id and other.explain(3).to_dict() == run.explain(3).to_dict()


# ── diffusion ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def written(model, holes):
    """Returns what a single engine writes by diffusion."""
    with LLM(model, kv_memory="8MB") as llm:
        llm.load_holes(holes)
        yield lambda sampling: llm.diffuse(PROMPT, sampling, diffusion=DIFFUSION).samples


DIFFUSION = {"block": 8, "passes": 4, "revise": 1}


@pytest.mark.parametrize("at", [None, 1, 5, 14])
def test_a_text_is_written_by_diffusion_once_although_the_replica_dies(cluster, written, at):
    cluster.renew()
    sampling = Sampling(seed=4, n=2, max_tokens=30, temperature=0.9, ignore_eos=True)
    request = by_diffusion(cluster.engine, cluster.engine.prepare(PROMPT, sampling), DIFFUSION)
    ended, passes = Event(), {run.id: [] for run in request.runs}
    told = {run.id: [] for run in request.runs}

    def on_pass(run, record):
        passes[run.id].append(record)
        if sum(map(len, passes.values())) == at:
            kill(cluster, cluster.transport.jobs[-1][0])

    def listen(run, token):
        told[run.id].append(token)
        if token is None and request.ended:
            ended.set()

    request.on_pass, request.listener = on_pass, listen
    cluster.engine.submit(request)
    assert ended.wait(120)
    assert [run.error for run in request.runs] == [None, None]
    for run, other in zip(request.runs, written(sampling), strict=True):
        same([run], [other])
        assert run.passes == other.passes == passes[run.id]
        assert told[run.id] == [*other.tokens, None]
        assert run.diffusion == other.diffusion
    cluster.renew()
    assert cluster.engine.explain(request.runs[0], 3).to_dict()


def test_a_cancelled_or_late_diffusion_ends_with_its_complete_blocks(cluster, written):
    cluster.renew()
    sampling = Sampling(seed=5, max_tokens=200, temperature=0.9, ignore_eos=True)
    (other,) = written(sampling)
    request = by_diffusion(cluster.engine, cluster.engine.prepare(PROMPT, sampling), DIFFUSION)
    request.on_pass = lambda run, record: cluster.engine.cancel(request) if record.number == 20 else None
    cluster.engine.submit(request)
    wait_until(lambda: request.ended)
    (run,) = request.runs
    assert run.finish_reason == "cancelled" and run.tokens == other.tokens[: len(run.tokens)]
    late = by_diffusion(
        cluster.engine, cluster.engine.prepare(PROMPT, sampling.changed({"timeout": 0.001})), DIFFUSION
    )
    cluster.engine.submit(late)
    wait_until(lambda: late.ended)
    assert late.runs[0].finish_reason == "timeout"
    wait_until(lambda: not cluster.engine.engine._streams.requests)


# ── adapters ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_request_with_an_adapter_moves_only_to_a_replica_that_has_it(cluster, single, folder, model):
    cluster.renew()
    single.load_adapter("sea", folder)
    try:
        sampling = Sampling(seed=3, max_tokens=60, temperature=1.1, adapter="sea", ignore_eos=True)
        expected = alone(single, sampling)
        assert expected[0].token_ids != alone(single, sampling.changed({"adapter": None}))[0].token_ids
        wait_until(lambda: dict(cluster.engine.adapters) == dict(single.adapters))
        runs = cluster.run(cluster.engine.prepare(PROMPT, sampling), 5, kill)
        same(runs, expected)
        assert runs[0].adapters == expected[0].adapters and runs[0].moves
        cluster.renew()
        assert cluster.engine.explain(runs[0], 3).to_dict() == single.explain(expected[0], 3).to_dict()
        with pytest.raises(GlassloopError, match="land"):
            cluster.engine.prepare(PROMPT, sampling.changed({"adapter": "land"}))
    finally:
        single.unload_adapter("sea")


def test_without_a_replica_that_has_the_adapter_there_is_an_error(model, folder):
    made = Cluster(model, ("a",), patience=0.5, replica={"adapters": {"sea": folder}})
    try:
        made.transport.add("b", adapters={})
        made.engine.wait(2)
        options = Sampling(seed=3, max_tokens=300, adapter="sea", ignore_eos=True)
        (run,) = made.run(made.engine.prepare(PROMPT, options), 5, kill)
        assert run.finish_reason == "error" and isinstance(run.error, Unavailable)
        assert "adapter" in str(run.error)
    finally:
        made.close()


def test_listeners_of_a_cancelled_search_are_told(cluster):
    cluster.renew()
    request = cluster.engine.prepare(PROMPT, Sampling(seed=1, max_tokens=400, ignore_eos=True))
    ended = Event()
    request.listener = lambda run, token: ended.set() if token is None else None
    cluster.engine.submit(request, may_refuse=False)
    cluster.engine.cancel(request, wait=True)
    assert ended.is_set() and request.runs[0].finish_reason == "cancelled"
