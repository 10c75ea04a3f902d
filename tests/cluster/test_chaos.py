"""Long tests on a real Ray, behind GLASSLOOP_CLUSTER=1 (`make test-cluster`): clients stream over HTTP while
replicas are killed, stopped, updated, added and removed, PostgreSQL is restarted and ingresses are killed.
Each answer is compared with that of a server with a single engine: every token and every number.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from cluster.clients import ALL_KINDS, Answer, Asked, ask
from cluster.test_server import listening
from server.conftest import Server, serving

from glassloop.record.store.store import Store
from glassloop.server.app import make_app
from glassloop.server.operation.logs import Log
from glassloop.server.operation.settings import ServerSettings
from glassloop.server.service import Service

pytest.importorskip("ray.serve", reason="Ray is not installed: pip install 'glassloop[ray]'")
pytestmark = pytest.mark.skipif(
    os.environ.get("GLASSLOOP_CLUSTER") != "1", reason="takes minutes; GLASSLOOP_CLUSTER=1 runs it"
)

MODEL = "smollm2-135m-instruct"
CLIENTS, SECONDS, KILL_EVERY = 64, 60, 10
QUESTIONS = [
    "Tell me about the sea.",
    "Write a short poem about rain in the city.",
    "List three animals and what they eat.",
    "Explain how a bicycle stays upright.",
]


@pytest.fixture(scope="module")
def single() -> Iterator[Server]:
    """A server with one engine in its process."""
    with serving("--kv-memory", "600MB") as started:
        yield started


@contextlib.contextmanager
def ray_cluster(nodes: int) -> Iterator[str]:
    """Gives the address of a Ray cluster with this many nodes on this machine."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 3, "object_store_memory": 100 << 20}
    for attempt in range(3):  # Ray gives its processes 30 s to start, which a busy machine may not keep
        made = Cluster()
        try:
            made.add_node(**node, include_dashboard=False)
            for _ in range(nodes - 1):
                made.add_node(**node)
            break
        except Exception:
            made.shutdown()
            if attempt == 2:
                raise
    try:
        yield made.address
    finally:
        made.shutdown()


class Crowd:
    """Clients that ask one question after the other, until `stop`. Clients from `most` on stop early."""

    def __init__(self, url: str, clients: int, kinds: Sequence[str], seeds: int = 8) -> None:
        self.done: list[tuple[Asked, Answer]] = []
        self.most = clients
        self._begun = 0
        self._failed: list[BaseException] = []
        self._url, self._kinds, self._seeds = url, kinds, seeds
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._client, args=(number,)) for number in range(clients)]
        for thread in self._threads:
            thread.start()

    def _client(self, number: int) -> None:
        own = random.Random(number)
        try:
            while number < self.most:
                asked = Asked(own.choice(self._kinds), own.choice(QUESTIONS), own.randrange(self._seeds))
                with self._lock:
                    self._begun += 1
                answer = ask(self._url, asked)
                with self._lock:
                    self.done.append((asked, answer))
        except BaseException as error:
            self._failed.append(error)

    def wait(self, answers: int) -> None:
        """Returns when this many answers have come."""
        while len(self.done) < answers:
            assert not self._failed, self._failed[:3]
            time.sleep(0.1)

    def stop(self) -> None:
        """Lets every client come to the end of its stream. Raises if an answer has been lost."""
        self.end()
        assert not self._failed, self._failed[:3]
        assert len(self.done) == self._begun

    def end(self) -> None:
        """Waits for the clients, whatever has become of their streams."""
        self.most = 0
        for thread in self._threads:
            thread.join(600)
            assert not thread.is_alive(), "a stream has not ended"

    def compare(self, single: Server) -> None:
        """Compares every answer with that of a single engine."""
        unique = list({asked: None for asked, _ in self.done})
        with ThreadPoolExecutor(16) as pool:
            expected = dict(zip(unique, pool.map(lambda asked: ask(single.url, asked), unique), strict=True))
        for asked, answer in self.done:
            answer.check_same(expected[asked])


def moved(crowd: Crowd) -> int:
    """Returns how many answers have a run that was moved."""
    return sum(any(run.moves for run in answer.runs) for _, answer in crowd.done)


def test_no_stream_breaks_while_replicas_are_killed_and_stopped(single):
    rng = random.Random(7)
    flags = ("--replicas", "3", "--threads", "1", "--kv-memory", "200MB", "--patience", "120")
    with ray_cluster(3) as address, serving(*flags, "--address", address) as server:
        wait_for(lambda: len(server.get("/api/replicas").json()) == 3)
        crowd = Crowd(server.url, CLIENTS, ALL_KINDS)
        until = time.monotonic() + SECONDS
        stopped, killed = [], []
        while time.monotonic() < until:
            time.sleep(KILL_EVERY)
            pids = [each["pid"] for each in server.get("/api/replicas").json()]
            alive = [pid for pid in pids if pid not in stopped + killed]
            rng.shuffle(alive)
            if len(killed) == 2 and len(alive) > 1 and not stopped:  # one is stopped too, and wakes up later
                stopped.append(alive.pop())
                os.kill(stopped[0], signal.SIGSTOP)
            elif stopped:
                try_signal(stopped[0], signal.SIGCONT)
            if alive:
                killed.append(alive.pop())
                os.kill(killed[-1], signal.SIGKILL)
        for pid in stopped:
            try_signal(pid, signal.SIGCONT)
        crowd.stop()
        handovers = server.get("/api/cluster").json()["handovers"]
        server.end()
    reasons = sorted({each["reason"] for each in handovers})
    slowest = max(each["seconds"] for each in handovers)
    print(
        f"{len(crowd.done)} answers, {moved(crowd)} of them moved, {len(handovers)} hand-overs ({reasons}),"
        f" {len(killed)} kills, {len(stopped)} stops, the longest without a replica {slowest:.1f} s"
    )
    assert {asked.kind for asked, _ in crowd.done} == set(ALL_KINDS)
    assert moved(crowd)
    crowd.compare(single)


def try_signal(pid: int, what: signal.Signals) -> None:
    """Sends a signal to a process that Ray may have ended meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, what)


def wait_for(condition: Callable[[], object], seconds: float = 300.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


@contextlib.contextmanager
def replicas(**options: Any) -> Iterator[tuple[Any, str]]:
    """Gives the engine of replicas with these options, and the address of a server in this process."""
    from glassloop.cluster.options import AppOptions, EngineOptions
    from glassloop.cluster.start import engines
    from glassloop.decode.sampling import Sampling

    each = EngineOptions(MODEL, kv_memory="200MB", threads=1, **options)
    settings = ServerSettings(MODEL)
    with engines(AppOptions((each,), settings)) as (engine,):
        engine.default_sampling = Sampling()
        service = Service(engine, settings, Log())
        try:
            with listening(make_app(service)) as client:
                yield engine, str(client.base_url)
        finally:
            service.pools.close()


def names_of(engine: Any) -> set[str]:
    return {each.replica for each in engine.statistics()}


def test_a_rolling_update_hands_streams_over(single):
    from glassloop.cluster.options import EngineOptions
    from glassloop.cluster.start import _deploy

    with replicas(replicas=2) as (engine, url):
        engine.wait(2)
        old = names_of(engine)
        crowd = Crowd(url, 4, ("sampled", "samples", "schema", "greedy"))
        after = EngineOptions(MODEL, kv_memory="210MB", threads=1, replicas=2)
        _deploy(f"glassloop-{MODEL}", after)
        wait_for(lambda: not names_of(engine) & old)
        crowd.stop()
        handovers = engine.handovers()
    print(f"{len(crowd.done)} answers during the update, {len(handovers)} hand-overs")
    assert "drained" in {each.reason for each in handovers}
    crowd.compare(single)


def test_replicas_are_added_under_load_and_removed_without_breaking_a_stream(single):
    scale = {"most_replicas": 3, "target_requests": 3, "upscale_delay": 2, "downscale_delay": 15}
    began = time.monotonic()
    with replicas(replicas=1, **scale) as (engine, url):
        crowd = Crowd(url, 12, ("sampled",), seeds=4)
        wait_for(lambda: len(names_of(engine)) == 3)
        grown = time.monotonic() - began
        crowd.most = 2  # two go on asking while replicas are removed
        wait_for(lambda: len(names_of(engine)) == 1)
        shrunk = time.monotonic() - began
        crowd.stop()
        handovers = [each.reason for each in engine.handovers()]
    print(f"three replicas after {grown:.0f} s, one after {shrunk:.0f} s; hand-overs {handovers}")
    crowd.compare(single)


# ── the store ──────────────────────────────────────────────────────────────────────────────────────────────

SHORT = ("sampled", "greedy", "samples", "schema")


def check_stored(url: str, crowd: Crowd) -> None:
    """Raises if a run that a client was told to have ended is not in the store as it was told."""
    with contextlib.closing(Store(url)) as kept:
        for answer in (answer for _, answer in crowd.done):
            for run in answer.runs:
                found = kept.run(run.id)
                assert found is not None
                assert (found.tokens, found.finish_reason) == (run.tokens, run.finish_reason)


def test_what_was_finished_survives_the_death_of_the_ingress(postgres, single):
    url = postgres.new_database()
    with serving("--replicas", "1", "--kv-memory", "200MB", "--store", url) as server:
        long = {"prompt": QUESTIONS[0], "sampling": {"max_tokens": 5000, "ignore_eos": True}}
        unfinished = server.post("/api/runs", long).json()["runs"][0]
        crowd = Crowd(server.url, 8, SHORT)
        crowd.wait(12)
        server.end(signal.SIGKILL)
        crowd.end()
    with contextlib.closing(Store(url)) as kept:
        assert kept.run(unfinished["id"]).finish_reason is None
    check_stored(url, crowd)
    crowd.compare(single)


def test_a_restart_of_postgresql_amid_hand_overs_loses_no_finished_run(postgres, single):
    url = postgres.new_database()
    with serving("--replicas", "2", "--kv-memory", "200MB", "--store", url) as server:
        crowd = Crowd(server.url, 12, SHORT)
        crowd.wait(4)
        victim = max(server.get("/api/replicas").json(), key=lambda each: each["running"])
        postgres.stop()
        os.kill(victim["pid"], signal.SIGKILL)
        crowd.wait(len(crowd.done) + 4)  # answers do not wait for the store
        postgres.start()
        crowd.wait(len(crowd.done) + 4)
        crowd.stop()
        server.end()
    check_stored(url, crowd)
    crowd.compare(single)


# ── ingresses of Ray Serve ─────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def application(address: str, args: dict[str, object]) -> Iterator[str]:
    """Deploys the application of a config file on a Ray cluster; gives the URL of Ray Serve's proxy."""
    import ray
    from ray import serve

    from glassloop.cluster import app

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ray.init(address=address, log_to_driver=False, namespace="glassloop")
    try:
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        serve.run(app(args), name="glassloop", route_prefix="/")
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()


def ingresses() -> list[int]:
    """Returns the process ids of the ingresses on this machine, by the titles that Ray gives them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(b"ray::ServeReplica:glassloop:ingress"):
                found.append(int(path.parent.name))
    return found


def test_ingresses_of_an_application_stream_and_find_each_others_runs(postgres):
    """Two ingresses behind Ray Serve's proxy, three replicas on three nodes. A replica is killed, and then an
    ingress: its clients lose their streams, and what was finished is found by the other one."""
    store = postgres.new_database()
    args = {"model": MODEL, "replicas": 3, "threads": 1, "kv_memory": "200MB", "ingresses": 2}
    with (
        ray_cluster(3) as address,
        application(address, {**args, "store": store, "open_to_all": True}) as url,
    ):
        assert len(ingresses()) == 2
        crowd = Crowd(url, 12, ("chat", "chat schema", "sampled", "samples", "fork"))
        crowd.wait(6)
        busiest = max(httpx.get(f"{url}/api/replicas").json(), key=lambda each: each["running"])
        os.kill(busiest["pid"], signal.SIGKILL)
        crowd.wait(len(crowd.done) + 12)
        crowd.stop()
        runs = [run for _, answer in crowd.done for run in answer.runs]

        def find_all() -> bool:
            """Returns whether all runs are found, by whichever ingress is asked."""
            return all(httpx.get(f"{url}/api/runs/{run.id}").status_code == 200 for run in runs)

        assert find_all() and find_all() and find_all()
        os.kill(ingresses()[0], signal.SIGKILL)
        wait_for(find_all)
        after = ask(url, Asked("samples", QUESTIONS[0], 1))
    check_stored(store, crowd)
    with serving("--kv-memory", "600MB", "--model-defaults") as single:
        crowd.compare(single)
        after.check_same(ask(single.url, Asked("samples", QUESTIONS[0], 1)))
