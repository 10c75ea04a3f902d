"""A request that moves between replicas has the same tokens and numbers as on a single engine."""

from __future__ import annotations

import asyncio
import os
import random
import time
from threading import Event, Timer

import pytest
from cluster.local import LocalTransport
from hostile.tiny import write_tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import wait_until

from glassloop import LLM, Sampling
from glassloop.cluster.cluster_model import ClusterModel
from glassloop.cluster.messages import Job, RunSoFar
from glassloop.cluster.replica import Replica
from glassloop.engine.protocol import Unavailable
from glassloop.errors import GlassloopError

PROMPT = [(7 * place) % 250 for place in range(70)]
KINDS = {
    "sampled": Sampling(seed=3, max_tokens=60, temperature=1.2, top_p=0.95, ignore_eos=True),
    "greedy": Sampling(temperature=0, max_tokens=60, repetition_penalty=1.3, ignore_eos=True),
    "penalties": Sampling(
        seed=5, max_tokens=60, presence_penalty=0.5, no_repeat_ngram_size=2, ignore_eos=True
    ),
    "mirostat": Sampling(seed=5, n=2, max_tokens=60, mirostat_tau=3.0, mirostat_eta=0.3, ignore_eos=True),
    "samples": Sampling(seed=4, n=4, max_tokens=40, ignore_eos=True),
    "grammar": Sampling(seed=6, regex="[a-f]{20}-[0-9]{20}", max_tokens=60),
    "schema": Sampling(
        seed=8,
        max_tokens=80,
        json_schema={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    ),
    "stop": Sampling(seed=2, max_tokens=60, stop=["\x00\x01\x02", "zz"], min_tokens=3, ignore_eos=True),
    "scored": Sampling(seed=7, max_tokens=40, prompt_logprobs=2, logprobs=3, ignore_eos=True),
    "beams": Sampling(beam_width=3, n=2, max_tokens=20, seed=1, prompt_logprobs=2),
    "revised": Sampling(
        seed=3,
        n=2,
        max_tokens=40,
        temperature=1.3,
        revise=3,
        revise_window=6,
        revise_bits=1.0,
        ignore_eos=True,
    ),
    "repetition": Sampling(temperature=0, max_tokens=200, stop_on_repetition=3, ignore_eos=True),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny(path)
    return str(path)


@pytest.fixture(scope="module")
def single(model):
    with LLM(model, kv_memory="8MB") as llm:
        yield llm


class Cluster:
    def __init__(self, model: str, names=("a", "b"), replica=None, **options) -> None:
        self.transport = LocalTransport(model, names, **(replica or {}))
        self.engine = ClusterModel(self.transport, self.transport.board, model, **options)
        self.engine.wait(len(names))

    def run(self, request, at: int | None = None, act=lambda cluster, name: None):
        """Computes a request. `act` is called with the replica that has it after `at` tokens."""
        ended, told = Event(), []

        def listen(run, token):
            told.append(token)
            if token is None and request.ended:
                ended.set()
            if at is not None and len([each for each in told if each is not None]) == at:
                act(self, self.transport.jobs[-1][0])

        request.listener = listen
        self.engine.submit(request)
        assert ended.wait(120)
        return request.runs

    def renew(self) -> None:
        """Adds a replica in place of one that was killed."""
        if len(self.transport.replicas) < 2:
            self.transport.add(os.urandom(4).hex())
        self.engine.wait(2)

    def close(self) -> None:
        self.engine.close()
        for replica in [*self.transport.replicas.values()]:  # killing one removes it, on another thread
            replica.close()


@pytest.fixture
def cluster(model):
    made = Cluster(model, stall=2.0, patience=10.0)
    yield made
    made.close()


@pytest.fixture(scope="module")
def lasting(model):
    made = Cluster(model)
    yield made
    made.close()


def kill(cluster: Cluster, name: str) -> None:
    cluster.transport.kill(name)


def same(found, expected) -> None:
    """The same tokens with the same numbers, the same text and the same end."""
    assert [run.token_ids for run in found] == [run.token_ids for run in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.tokens == other.tokens
        assert one.prompt_tokens == other.prompt_tokens
        assert one.text == other.text
        assert (one.finish_reason, one.stop_reason, one.end) == (
            other.finish_reason,
            other.stop_reason,
            other.end,
        )
        assert [(each.number, each.parent, each.id, each.fate) for each in one.beams] == [
            (each.number, each.parent, each.id, each.fate) for each in other.beams
        ]


def alone(single: LLM, sampling: Sampling, prompt=PROMPT):
    return single.generate(list(prompt), sampling).samples


@pytest.mark.parametrize("kind", KINDS)
def test_a_replica_computes_what_a_single_engine_does(lasting, single, kind):
    lasting.renew()
    same(lasting.run(lasting.engine.prepare(PROMPT, KINDS[kind])), alone(single, KINDS[kind]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_goes_on_when_its_replica_dies(lasting, single, kind):
    lasting.renew()
    runs = lasting.run(lasting.engine.prepare(PROMPT, KINDS[kind]), at=4, act=kill)
    same(runs, alone(single, KINDS[kind]))
    if kind != "beams":  # they are told when they have ended
        move = runs[-1].moves[0]
        assert move.reason == "died"
        told = lasting.engine.handovers()
        assert (move.source, move.target) in [(each.source, each.target) for each in told]


def send_again(cluster: Cluster, name: str) -> None:
    """Sends the job of a replica to another one too, as Ray Serve does when it has lost the answer to a
    call."""
    job, board = cluster.transport.jobs[-1][1], cluster.transport.board
    other = next(each for each in cluster.transport.replicas if each != name)
    cluster.engine.engine.call(cluster.transport.replicas[other].start(job))
    board.on_routed(job.key, other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_two_replicas_have_is_told_once(lasting, single, kind):
    lasting.renew()
    runs = lasting.run(lasting.engine.prepare(PROMPT, KINDS[kind]), at=4, act=send_again)
    same(runs, alone(single, KINDS[kind]))


def test_a_closed_engine_takes_no_request(model):
    made = Cluster(model, ("a",))
    request = made.engine.prepare(PROMPT, Sampling(max_tokens=3))
    made.close()
    with pytest.raises(GlassloopError, match="closed"):
        made.engine.submit(request)
    with pytest.raises(GlassloopError, match="closed"):
        made.engine.embed(PROMPT)


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 1000),
    at=st.integers(1, 30),
    length=st.integers(1, 80),
    temperature=st.sampled_from([0, 0.7, 1.5]),
    n=st.integers(1, 3),
)
def test_any_place_will_do(lasting, single, seed, at, length, temperature, n):
    sampling = Sampling(seed=seed, temperature=temperature, n=n, max_tokens=40, ignore_eos=True, stop=["ab"])
    prompt = PROMPT[:length]
    lasting.renew()
    same(lasting.run(lasting.engine.prepare(prompt, sampling), at, kill), alone(single, sampling, prompt))


def test_a_half_matched_stop_string_is_found_by_the_next_replica(lasting, single):
    letters = Sampling(seed=6, regex="[a-z]{40}", max_tokens=60)
    text = alone(single, letters)[0].text
    stopped = letters.changed({"stop": [text[10:15]]})
    expected = alone(single, stopped)
    assert expected[0].finish_reason == "stop"
    assert len(expected[0].text) <= 10
    for at in range(10, 14):
        lasting.renew()
        runs = lasting.run(lasting.engine.prepare(PROMPT, stopped), at, kill)
        same(runs, expected)
        assert runs[0].moves


@pytest.mark.parametrize("at", [2, 6, 7, 8, 11, 16, 24])
def test_tokens_are_taken_back_as_by_one_engine_wherever_the_run_moves(lasting, single, at):
    expected = alone(single, KINDS["revised"])
    assert expected[0].revised == expected[1].revised == 3
    lasting.renew()
    runs = lasting.run(lasting.engine.prepare(PROMPT, KINDS["revised"]), at, kill)
    same(runs, expected)
    for found, other in zip(runs, expected, strict=True):
        taken = [(each.token_ids, each.tail) for each in found.drafts_taken_back]
        assert taken == [(each.token_ids, each.tail) for each in other.drafts_taken_back]


def test_the_jobs_of_an_ingress_that_has_gone_are_ended(model, monkeypatch):
    monkeypatch.setattr("glassloop.cluster.replica._LEASE", 0.3)
    monkeypatch.setattr("glassloop.cluster.replica._OPEN_SECONDS", 0.5)
    monkeypatch.setattr("glassloop.cluster.replica._REPORT_EVERY", 0.1)
    replica = Replica("a", LLM(model, kv_memory="8MB"))
    run = RunSoFar(1, 0, 0, Sampling(max_tokens=400, ignore_eos=True), ())
    key, limits = "k", Sampling(max_tokens=400, ignore_eos=True)
    replica.llm.engine.loop.step = slowly(replica.llm.engine.loop.step)
    job = Job(key, "s", tuple(PROMPT), limits, (run,), (), False, None, True, 0, 0.0)

    async def leave() -> None:
        started = asyncio.create_task(replica.start(job))
        async for bulletin in replica.open("s"):
            if bulletin.news:
                break  # and never open another stream
        await asyncio.wait_for(started, 120)

    asyncio.run(leave())
    wait_until(lambda: not replica.llm.engine.loop.busy)
    assert not replica._sessions
    replica.close()


def test_a_replica_that_has_given_up_the_ingress_does_not_leave_a_stream_without_an_end(cluster, single):
    """As after a stop of the ingress for longer than its lease."""
    sampling = Sampling(seed=4, max_tokens=300, ignore_eos=True)

    def give_up(cluster, name):
        replica = cluster.transport.replicas[name]
        for session in replica._sessions.values():
            session.turn += 1  # its stream has ended long before
            session.end()
        replica._sessions.clear()

    runs = cluster.run(cluster.engine.prepare(PROMPT, sampling), 5, give_up)
    same(runs, alone(single, sampling))
    assert [move.reason for move in runs[0].moves] == ["stalled"]


@pytest.mark.parametrize("kind", ["sampled", "samples", "beams", "grammar"])
def test_replicas_that_die_while_they_take_over_lose_nothing(model, single, kind):
    made = Cluster(model, ("a", "b", "c", "d"), stall=2.0, patience=10.0)
    routed = made.transport.board.on_routed
    killed: list[str] = []

    def on_routed(key: str, name: str) -> None:
        routed(key, name)
        if killed and len(killed) < 3 and name in made.transport.replicas:  # before it has told a token
            killed.append(name)
            made.transport.kill(name)

    made.transport.board.on_routed = on_routed

    def first(cluster, name):
        killed.append(name)
        cluster.transport.kill(name)

    try:
        if kind == "beams":  # they are told when they have ended: the first replica dies before that
            Timer(0.02, lambda: first(made, next(iter(made.transport.replicas)))).start()
        runs = made.run(
            made.engine.prepare(PROMPT, KINDS[kind]), 4, first if kind != "beams" else lambda *_: 0
        )
        same(runs, alone(single, KINDS[kind]))
        if kind != "beams":
            assert len(killed) == 3 and runs[-1].moves
    finally:
        made.close()


def slowly(step):
    def later():
        time.sleep(0.05)
        step()

    return later


def test_a_fork_with_forced_tokens_goes_on(cluster, single):
    sampling = Sampling(seed=9, max_tokens=50, ignore_eos=True)
    parent = cluster.run(cluster.engine.prepare(PROMPT, sampling))[0]
    expected = single.fork(alone(single, sampling)[0], 10, text="hello there", temperature=0.7)
    for at in (3, 11, 20):
        request = cluster.engine.prepare_fork(parent, 10, text="hello there", temperature=0.7)
        cluster.transport.add(f"c{at}")
        cluster.engine.wait(len(cluster.transport.replicas))
        same(cluster.run(request, at, kill if at == 3 else lambda *_: None), [expected])


def test_a_silent_replica_is_given_up_and_changes_nothing_when_it_wakes(cluster, single):
    sampling = Sampling(seed=1, max_tokens=300, ignore_eos=True)
    request = cluster.engine.prepare(PROMPT, sampling)
    silenced = []

    def silence(cluster, name):
        silenced.append(name)
        cluster.transport.silent.add(name)

    runs = cluster.run(request, 5, silence)
    assert [move.reason for move in runs[0].moves] == ["stalled"]
    assert cluster.engine.problem is not None
    before = list(runs[0].tokens)
    cluster.transport.silent.clear()
    wait_until(lambda: cluster.engine.problem is None)
    same(runs, alone(single, sampling))
    assert runs[0].tokens == before
    assert cluster.engine.ready


def test_a_drained_replica_hands_over_at_once(cluster, single):
    sampling = Sampling(seed=2, max_tokens=300, ignore_eos=True)
    runs = cluster.run(
        cluster.engine.prepare(PROMPT, sampling), 5, lambda cluster, name: cluster.transport.drain(name)
    )
    same(runs, alone(single, sampling))
    assert [move.reason for move in runs[0].moves] == ["drained"]


def test_without_an_equal_replica_there_is_an_error_and_no_other_answer(model):
    cluster = Cluster(model, ("a",), patience=0.5)
    try:
        request = cluster.engine.prepare(PROMPT, Sampling(seed=2, max_tokens=300, ignore_eos=True))
        (run,) = cluster.run(request, 5, kill)
        assert run.finish_reason == "error"
        assert isinstance(run.error, Unavailable)
        assert len(run.tokens) >= 5
        assert not cluster.engine.ready
    finally:
        cluster.close()


def test_a_silent_replica_without_another_one_may_wake_up_and_go_on(model, single):
    cluster = Cluster(model, ("a",), stall=1.0, patience=30)
    try:
        sampling = Sampling(seed=2, max_tokens=300, ignore_eos=True)

        def silence(cluster, name):
            cluster.transport.silent.add(name)
            Timer(2.0, cluster.transport.silent.clear).start()

        runs = cluster.run(cluster.engine.prepare(PROMPT, sampling), 5, silence)
        same(runs, alone(single, sampling))
        assert runs[0].moves == []
    finally:
        cluster.close()


def test_the_timeout_goes_on_during_an_outage(model):
    cluster = Cluster(model, ("a",), patience=30)
    try:
        sampling = Sampling(seed=2, max_tokens=400, ignore_eos=True, timeout=1.0)
        (run,) = cluster.run(cluster.engine.prepare(PROMPT, sampling), 5, kill)
        assert (run.finish_reason, run.stop_reason) == ("timeout", "after 1 s")
    finally:
        cluster.close()


def test_a_cancelled_request_keeps_exactly_what_was_told(cluster, single):
    sampling = Sampling(seed=2, max_tokens=300, ignore_eos=True)
    request = cluster.engine.prepare(PROMPT, sampling)
    request.drafts = False
    (run,) = cluster.run(request, 9, lambda cluster, name: cluster.engine.cancel(request))
    assert (run.finish_reason, len(run.tokens)) == ("cancelled", 9)
    run.finish_reason = run.stop_reason = None
    run.tail = ""
    same(cluster.run(cluster.engine.prepare_rest(run)), alone(single, sampling))
    replicas = cluster.transport.replicas.values()
    wait_until(lambda: not any(replica.llm.engine.loop.busy for replica in replicas))


def test_questions_are_answered_by_a_replica(cluster, single):
    sampling = Sampling(seed=2, max_tokens=20, ignore_eos=True)
    (run,) = cluster.run(cluster.engine.prepare(PROMPT, sampling))
    assert cluster.engine.explain(run, 3).to_dict() == single.explain(run, 3).to_dict()
    told = cluster.engine.explain(run, 3, temperature=0.2).to_dict()
    assert told == single.explain(run, 3, temperature=0.2).to_dict()
    layers = cluster.engine.lens.layers(run, 5).to_dict()
    assert layers == single.lens.layers(run, 5).to_dict()
    assert (cluster.engine.embed(PROMPT) == single.embed(PROMPT)).all()
    assert cluster.engine.replay(run).identical


def test_prefix_routing_doubles_the_cached_share_of_multi_turn_chat(model):
    shares = {}
    for by_turns in (False, True):
        cluster = Cluster(model, ("a", "b", "c"))
        cluster.transport.by_turns = by_turns
        rng = random.Random(3)
        chats = [[rng.randrange(250) for _ in range(64)] for _ in range(12)]
        cached = prompts = 0
        try:
            for _ in range(4):
                rng.shuffle(chats)
                for chat in chats:
                    sampling = Sampling(seed=1, max_tokens=32, ignore_eos=True)
                    (run,) = cluster.run(cluster.engine.prepare(chat, sampling))
                    cached, prompts = cached + run.cached_tokens, prompts + len(chat)
                    chat += [*run.token_ids, *(rng.randrange(250) for _ in range(32))]
        finally:
            cluster.close()
        shares[by_turns] = cached / prompts
    assert shares[False] >= 2 * shares[True], shares
