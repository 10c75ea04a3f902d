"""Replicas on a real Ray on this machine: streams go on when a replica is killed, with the same tokens and
numbers. The long test with three nodes is behind GLASSLOOP_CLUSTER=1 (`make test-cluster`).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from server.conftest import Server, serving

from glassloop import LLM, Sampling
from glassloop.diffuse.write import by_diffusion
from glassloop.edit.infill import infill
from glassloop.search.solve import solve
from glassloop.trace.file import from_bytes
from glassloop.trace.store import Store

pytest.importorskip("ray.serve", reason="Ray is not installed: pip install 'glassloop[ray]'")

MODEL = "smollm2-135m-instruct"
LONG = os.environ.get("GLASSLOOP_CLUSTER") == "1"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
KINDS: dict[str, dict[str, object]] = {
    "sampled": {"temperature": 1.0, "top_p": 0.95, "max_tokens": 90, "ignore_eos": True},
    "greedy": {"temperature": 0.0, "max_tokens": 90, "ignore_eos": True, "repetition_penalty": 1.1},
    "schema": {"json_schema": SCHEMA, "max_tokens": 60, "temperature": 0.8},
    "samples": {"n": 4, "max_tokens": 50, "temperature": 0.9, "ignore_eos": True},
    "beams": {"beam_width": 3, "max_tokens": 24},
    "stops": {"stop": ["\n\n", "the end of the"], "max_tokens": 90, "temperature": 0.7},
}
PROMPT = "Once upon a time there was a lighthouse keeper who counted ships. One evening"


@pytest.fixture(scope="module")
def single() -> Iterator[LLM]:
    with LLM(MODEL, kv_memory="300MB") as llm:
        yield llm


@pytest.fixture(scope="module")
def cluster() -> Iterator[Server]:
    with serving("--replicas", "2", "--kv-memory", "200MB") as started:
        yield started
        started.end()  # with the processes of Ray


def run_on(server: Server, body: dict[str, object], path: str = "/api/runs") -> list:
    """Starts runs, waits for them, and returns them with every record, as the server exports them."""
    answer = server.post(path, body)
    assert answer.status_code < 300, answer.text
    runs = answer.json()["runs"]
    with_close = f"/api/trees/{runs[0]['tree']}/events?close=true"
    assert server.get(with_close).status_code == 200
    return [from_bytes(server.get(f"/api/runs/{run['id']}/export").content)[0] for run in runs]


def same(found, expected) -> None:
    assert [run.token_ids for run in found] == [run.token_ids for run in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.tokens == other.tokens
        assert (one.text, one.finish_reason, one.end) == (other.text, other.finish_reason, other.end)


def test_streams_continue_when_their_replica_is_killed(cluster, single):
    bodies = [(kind, seed) for seed in (1, 2) for kind in KINDS]

    def ask(kind_and_seed):
        kind, seed = kind_and_seed
        return run_on(cluster, {"prompt": PROMPT, "sampling": {**KINDS[kind], "seed": seed}})

    with ThreadPoolExecutor(len(bodies)) as pool:
        asked = [pool.submit(ask, body) for body in bodies]
        time.sleep(1.0)
        busiest = max(cluster.get("/api/replicas").json(), key=lambda each: each["running"])
        os.kill(busiest["pid"], signal.SIGKILL)
        answers = [each.result() for each in asked]
    for (kind, seed), runs in zip(bodies, answers, strict=True):
        same(runs, single.generate(PROMPT, Sampling(**KINDS[kind], seed=seed)).samples)
    state = cluster.get("/api/cluster").json()
    assert state["handovers"]
    assert {each["reason"] for each in state["handovers"]} <= {"died", "stalled", "drained"}
    moved = [run for runs in answers for run in runs if run.moves]
    assert moved  # the record says where it moved
    assert moved[0].moves[0].source == busiest["id"]


def test_searches_and_edits_are_computed_by_replicas(cluster, single):
    chat = {"messages": [{"role": "user", "content": "What is 3 + 4?"}], "seed": 5, "max_tokens": 12}
    search = {"method": "vote", "n": 3, "extract": "number", "paths": True}
    found = cluster.post("/v1/chat/completions", {**chat, "temperature": 0.8, "search": search}).json()
    options = Sampling(seed=5, max_tokens=12, temperature=0.8)
    expected = single.solve(chat["messages"], "vote", n=3, extract="number", sampling=options)
    assert [path["text"] for path in found["search"]["paths"]] == [path.text for path in expected.paths]
    body = {"before": "The capital of France is", "after": ", on the Seine.", "tokens": 2, "candidates": 3}
    answer = cluster.post("/api/edits/infill", {**body, "sampling": {"seed": 3}})
    assert answer.status_code == 200, answer.text
    edit = single.infill(
        body["before"], body["after"], 2, candidates=3, sampling=Sampling(seed=3, temperature=0.8)
    )
    assert [each["own_bits"] for each in answer.json()["proposals"]] == [
        each.own_bits for each in edit.proposals
    ]
    wrong = cluster.post("/api/edits/infill", {**body, "proposer": "diffusion", "method": "metropolis"})
    assert wrong.status_code == 400, wrong.text  # the error of the function, through Ray


# ── the long test ──────────────────────────────────────────────────────────────────────────────────────────

CLIENTS, SECONDS, KILL_EVERY = 64, 60, 10
LONG_KINDS: dict[str, dict[str, object]] = {
    **KINDS,
    "revised": {"temperature": 1.2, "max_tokens": 60, "revise": 3, "revise_window": 8, "revise_bits": 4.0},
    "diffusion": {"temperature": 0.8, "max_tokens": 24},
}
DIFFUSION = {"block": 8, "passes": 4}
QUESTIONS = [
    "Tell me about the sea.",
    "Write a short poem about rain in the city.",
    "List three animals and what they eat.",
    "Explain how a bicycle stays upright.",
]


class Asked:
    """One request of a client, and what came of it."""

    def __init__(self, kind: str, question: str, seed: int) -> None:
        self.kind, self.question, self.seed = kind, question, seed
        self.told: list = []  # tokens as the listener was told, by run
        self.runs: list = []
        self.parent = None
        self.solved = None  # of a search or an edit

    @property
    def sampling(self) -> Sampling:
        return Sampling(**LONG_KINDS["sampled" if self.kind == "fork" else self.kind], seed=self.seed)


SEARCH = {"method": "vote", "n": 3, "extract": "number"}


def ask(engine, asked: Asked) -> None:
    """Asks for an answer and follows its stream to the end."""
    if asked.kind == "search":
        asked.solved = solved(engine, asked)
        return
    if asked.kind == "edit":
        asked.solved = edited(engine, asked)
        return
    if asked.kind == "fork":
        asked.parent = complete(engine, engine.prepare(asked.question, asked.sampling), [])[0]
        request = engine.prepare_fork(asked.parent, 12, text=" but then", temperature=0.6)
    else:
        request = engine.prepare(asked.question, asked.sampling)
    if asked.kind == "diffusion":
        request = by_diffusion(engine, request, DIFFUSION)
    asked.runs = complete(engine, request, asked.told)


def solved(engine, asked: Asked) -> tuple:
    """Returns the paths and decisions of a search."""
    options = Sampling(seed=asked.seed, max_tokens=24, temperature=0.8)
    solution = solve(engine, asked.question, sampling=options, **SEARCH)
    decisions = [(each.round, each.action, each.path, each.tokens) for each in solution.decisions]
    return [path.run.tokens for path in solution.paths], decisions


def edited(engine, asked: Asked) -> tuple:
    """Returns every proposal of an edit."""
    options = {"candidates": 4, "sampling": Sampling(seed=asked.seed)}
    made = engine.apply(infill, asked.question, " That is all.", 4, **options)
    return made.text, [(each.ids, each.own_bits, each.following_bits) for each in made.proposals]


def complete(engine, request, told: list) -> list:
    ended = threading.Event()

    def listen(run, token):
        told.append((run.sample, token))
        if token is None and request.ended:
            ended.set()

    request.listener = listen
    engine.submit(request)
    assert ended.wait(300), "a stream has not ended"
    return request.runs


def expected_of(single: LLM, asked: Asked) -> list:
    if asked.kind == "search":
        return [solved(single, asked)]
    if asked.kind == "edit":
        return [edited(single, asked)]
    if asked.kind == "diffusion":
        return single.diffuse(asked.question, asked.sampling, diffusion=DIFFUSION).samples
    made = single.generate(asked.question, asked.sampling)
    if asked.kind == "fork":
        return [single.fork(made, 12, text=" but then", temperature=0.6)]
    return made.samples


@pytest.mark.skipif(not LONG, reason="takes minutes; GLASSLOOP_CLUSTER=1 runs it")
def test_no_stream_breaks_while_replicas_are_killed_and_stopped(single):
    from ray.cluster_utils import Cluster

    from glassloop.cluster.options import AppOptions, EngineOptions
    from glassloop.cluster.start import engines
    from glassloop.server.operation.settings import Settings

    node = {"num_cpus": 3, "object_store_memory": 100 << 20}
    ray_cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    for _ in range(2):
        ray_cluster.add_node(**node)
    options = AppOptions(
        (EngineOptions(MODEL, replicas=3, kv_memory="200MB", threads=1),), Settings(MODEL), patience=120
    )
    kinds = [*LONG_KINDS, "fork", "search", "edit"]
    done: list[Asked] = []
    failed: list[BaseException] = []
    rng = random.Random(7)
    until = 0.0

    def client(number: int) -> None:
        own = random.Random(number)
        try:
            while time.monotonic() < until:
                asked = Asked(own.choice(kinds), own.choice(QUESTIONS), own.randrange(8))
                ask(engine, asked)
                done.append(asked)
        except BaseException as error:
            failed.append(error)

    try:
        with engines(options, ray_cluster.address) as (engine,):
            engine.wait(3, 300)
            until = time.monotonic() + SECONDS
            clients = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
            for thread in clients:
                thread.start()
            stopped, killed = [], []
            while time.monotonic() < until:
                time.sleep(KILL_EVERY)
                alive = [each for each in engine.statistics() if each.pid not in stopped + killed]
                if not alive:
                    continue
                victim = rng.choice(alive).pid
                if len(killed) == 2 and not stopped:  # one of them is stopped, and wakes up later
                    os.kill(victim, signal.SIGSTOP)
                    stopped.append(victim)
                else:
                    os.kill(victim, signal.SIGKILL)
                    killed.append(victim)
                if stopped and len(killed) >= 4:
                    try_signal(stopped[0], signal.SIGCONT)
            for pid in stopped:
                try_signal(pid, signal.SIGCONT)
            for thread in clients:
                thread.join(400)
                assert not thread.is_alive()
            handovers = engine.handovers()
    finally:
        ray_cluster.shutdown()
    assert not failed, failed[:3]
    reasons = {each.reason for each in handovers}
    slowest = max(each.seconds for each in handovers)
    moved = sum(any(run.moves for run in asked.runs) for asked in done)
    print(
        f"{len(done)} answers, {moved} of them moved, {len(handovers)} hand-overs ({sorted(reasons)}),"
        f" {len(killed)} kills, {len(stopped)} stops, the longest without a replica {slowest:.1f} s"
    )
    assert moved
    unique = {(asked.kind, asked.question, asked.seed): asked for asked in done}
    with ThreadPoolExecutor(16) as pool:
        known = dict(
            zip(unique, pool.map(lambda each: expected_of(single, each), unique.values()), strict=True)
        )
    for asked in done:
        expected = known[asked.kind, asked.question, asked.seed]
        if asked.kind in ("search", "edit"):
            assert asked.solved == expected[0]
            continue
        same(asked.runs, expected)
        for run in (
            asked.runs if asked.kind != "revised" else ()
        ):  # what the client saw is what the record has: nothing doubled, nothing lost
            told = [token for sample, token in asked.told if sample == run.sample]
            assert told == [*run.tokens[len(run.tokens) - len(told) + 1 :], None]
            assert len(told) - 1 == len(run.tokens) - (run.fork_at or 0)


def try_signal(pid: int, what: signal.Signals) -> None:
    """Sends a signal to a process that Ray may have ended meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, what)


@pytest.mark.skipif(not LONG, reason="takes a minute; GLASSLOOP_CLUSTER=1 runs it")
def test_a_rolling_update_hands_streams_over(single):
    from glassloop.cluster.options import AppOptions, EngineOptions
    from glassloop.cluster.start import _deploy, engines
    from glassloop.server.operation.settings import Settings

    before = EngineOptions(MODEL, replicas=2, kv_memory="200MB", threads=1)
    with engines(AppOptions((before,), Settings(MODEL))) as (engine,):
        engine.wait(2)
        old = {each.replica for each in engine.statistics()}
        update = threading.Thread(
            target=_deploy, args=(f"glassloop-{MODEL}", replace(before, kv_memory="210MB")), daemon=True
        )
        update.start()
        done: list[Asked] = []
        seed = 0
        while update.is_alive() or {each.replica for each in engine.statistics()} & old:
            batch = [Asked(kind, QUESTIONS[0], seed) for kind in ("sampled", "samples", "schema", "greedy")]
            threads = [threading.Thread(target=ask, args=(engine, asked)) for asked in batch]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(120)
                assert not thread.is_alive()
            done += batch
            seed += 1
            assert seed < 200
        handovers = engine.handovers()
    print(f"{len(done)} answers during the update, {len(handovers)} hand-overs")
    assert "drained" in {each.reason for each in handovers}
    for asked in done:
        same(asked.runs, expected_of(single, asked))


@pytest.mark.skipif(not LONG, reason="takes a minute; GLASSLOOP_CLUSTER=1 runs it")
def test_what_was_finished_survives_the_death_of_the_ingress(postgres, single):
    url = postgres.new_database()
    sampling = Sampling(seed=3, max_tokens=20)
    with serving("--replicas", "1", "--kv-memory", "200MB", "--store", url) as server:
        long = {"prompt": PROMPT, "sampling": {"max_tokens": 5000, "ignore_eos": True}}
        unfinished = server.post("/api/runs", long).json()["runs"][0]
        (run,) = run_on(server, {"prompt": PROMPT, "sampling": {"seed": 3, "max_tokens": 20}})
        server.end(signal.SIGKILL)
    with contextlib.closing(Store(url)) as kept:
        assert kept.run(run.id).tokens == single.generate(PROMPT, sampling).tokens
        assert kept.run(unfinished["id"]).finish_reason is None


@pytest.mark.skipif(not LONG, reason="takes minutes; GLASSLOOP_CLUSTER=1 runs it")
def test_replicas_are_added_under_load_and_removed_without_breaking_a_stream(single):
    from glassloop.cluster.options import AppOptions, EngineOptions
    from glassloop.cluster.start import engines
    from glassloop.server.operation.settings import Settings

    each = EngineOptions(
        MODEL,
        replicas=1,
        most_replicas=3,
        target_requests=3,
        upscale_delay=2,
        downscale_delay=15,
        kv_memory="200MB",
        threads=1,
    )
    done: list[Asked] = []
    most_open = [12]
    began = time.monotonic()
    seen: list[tuple[int, int]] = []  # seconds, replicas

    with engines(AppOptions((each,), Settings(MODEL))) as (engine,):

        def client(number: int) -> None:
            own = random.Random(number)
            while number < most_open[0]:
                asked = Asked("sampled", own.choice(QUESTIONS), own.randrange(4))
                ask(engine, asked)
                done.append(asked)

        def until(condition, seconds: float) -> None:
            while not condition():
                seen.append((int(time.monotonic() - began), len(engine.statistics())))
                assert time.monotonic() - began < seconds, seen
                time.sleep(1)

        clients = [threading.Thread(target=client, args=(number,)) for number in range(12)]
        for thread in clients:
            thread.start()
        until(lambda: len(engine.statistics()) == 3, 240)
        grown = int(time.monotonic() - began)
        most_open[0] = 2  # two go on asking while replicas are removed
        until(lambda: len(engine.statistics()) == 1, 480)
        shrunk = int(time.monotonic() - began)
        most_open[0] = 0
        for thread in clients:
            thread.join(120)
            assert not thread.is_alive()
        handovers = [each.reason for each in engine.handovers()]
    changes = [each for place, each in enumerate(seen) if not place or seen[place - 1][1] != each[1]]
    print(f"three replicas after {grown} s, one after {shrunk} s; {changes}; hand-overs {handovers}")
    known: dict[tuple[str, int], list] = {}
    for asked in done:
        key = asked.question, asked.seed
        known[key] = known.get(key) or expected_of(single, asked)
        same(asked.runs, known[key])


@pytest.mark.skipif(not LONG, reason="takes a minute; GLASSLOOP_CLUSTER=1 runs it")
def test_a_restart_of_postgresql_amid_hand_overs_loses_no_finished_run(postgres, single):
    url = postgres.new_database()
    bodies = [(kind, seed) for seed in (5, 6, 7) for kind in ("sampled", "greedy", "samples", "schema")]
    with serving("--replicas", "2", "--kv-memory", "200MB", "--store", url) as server:

        def ask_for(kind_and_seed):
            kind, seed = kind_and_seed
            return run_on(server, {"prompt": PROMPT, "sampling": {**KINDS[kind], "seed": seed}})

        with ThreadPoolExecutor(len(bodies)) as pool:
            asked = [pool.submit(ask_for, body) for body in bodies]
            time.sleep(1.0)
            victim = max(server.get("/api/replicas").json(), key=lambda each: each["running"])
            postgres.stop()
            os.kill(victim["pid"], signal.SIGKILL)
            time.sleep(3.0)
            postgres.start()
            answers = [each.result() for each in asked]
        server.end()
    with contextlib.closing(Store(url)) as kept:
        for (kind, seed), runs in zip(bodies, answers, strict=True):
            expected = single.generate(PROMPT, Sampling(**KINDS[kind], seed=seed)).samples
            same(runs, expected)
            same([kept.run(run.id) for run in runs], expected)
