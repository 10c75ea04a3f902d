"""Replicas on a real Ray on this machine: streams go on when a replica is killed, with the same tokens and
numbers. `test_chaos.py` has the long tests.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cluster.clients import KINDS
from server.conftest import Server, serving

from glassloop import LLM, Sampling
from glassloop.record.format.glass_file import from_bytes

pytest.importorskip("ray.serve", reason="Ray is not installed: pip install 'glassloop[ray]'")

MODEL = "smollm2-135m-instruct"
PROMPT = "Once upon a time there was a lighthouse keeper who counted ships. One evening"


@pytest.fixture(scope="module")
def single() -> Iterator[LLM]:
    with LLM(MODEL, kv_memory="300MB") as llm:
        yield llm


@pytest.fixture(scope="module")
def cluster() -> Iterator[Server]:
    # The server has a Ray of its own, whatever other Ray there is.
    with serving("--replicas", "2", "--kv-memory", "200MB", env={"RAY_ADDRESS": "127.0.0.1:1"}) as started:
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


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.05)


def busiest_of(server: Server) -> dict:
    """Returns the replica with the most runs, once one has reported some."""
    while True:
        busiest = max(server.get("/api/replicas").json(), key=lambda each: each["running"])
        if busiest["running"]:
            return busiest
        time.sleep(0.05)


def same(found, expected) -> None:
    assert [(run.finish_reason, run.stop_reason) for run in found] == [
        (run.finish_reason, run.stop_reason) for run in expected
    ]
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
        busiest = busiest_of(cluster)
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


def test_streams_continue_when_every_replica_is_killed(cluster, single):
    wait_for(lambda: len(cluster.get("/api/replicas").json()) == 2)
    sampling = {**KINDS["sampled"], "seed": 3}

    def ask(number):
        return run_on(cluster, {"prompt": f"{number}. {PROMPT}", "sampling": sampling})

    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(ask, number) for number in range(16)]
        busiest_of(cluster)
        for each in cluster.get("/api/replicas").json():
            os.kill(each["pid"], signal.SIGKILL)
        answers = [each.result() for each in asked]
    for number, runs in enumerate(answers):
        same(runs, single.generate(f"{number}. {PROMPT}", Sampling(**sampling)).samples)


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


# ── ports, the token, the end ──────────────────────────────────────────────────────────────────────────────


def processes_of(server: Server) -> list:
    import psutil  # Ray has it

    return [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]


def listening(server: Server) -> set[tuple[str, int]]:
    """Returns the addresses and ports at which a server and its Ray listen, but for the server's own."""
    found = {
        (connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port)
        for process in processes_of(server)
        for connection in process.net_connections(kind="tcp")
        if connection.status == "LISTEN"
    }
    return found - {("127.0.0.1", int(server.url.rpartition(":")[2]))}


@pytest.mark.skipif(sys.platform != "linux", reason="looks at the processes of others")
def test_ray_listens_on_this_machine_alone_with_a_private_token_and_ends_with_the_server():
    import psutil

    with serving("--replicas", "1", "--kv-memory", "100MB") as server:
        ports = listening(server)
        assert {address for address, _ in ports} == {"127.0.0.1"}, ports
        named = re.search(
            r"Ray listens on 127\.0\.0\.1 \(ports ([\d, ]+)\) and needs its token", server.first_line
        )
        assert named, server.first_line
        assert {int(port) for port in named[1].split(", ")} <= {port for _, port in ports}
        assert len(named[1].split(", ")) >= 5
        raylets = [process for process in processes_of(server) if process.name() == "raylet"]
        (environ,) = [process.environ() for process in raylets]
        assert environ["RAY_AUTH_MODE"] == "token"
        file = Path(environ["RAY_AUTH_TOKEN_PATH"])
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 2}).status_code == 200
        started = processes_of(server)
        assert server.end() == 0
        _, alive = psutil.wait_procs(started, timeout=5)
        assert not alive and not file.parent.exists()


@pytest.mark.parametrize("mode", ["disabled", "k8s"])
def test_no_ray_is_started_without_a_token(mode):
    command = [sys.executable, "-m", "glassloop", "serve", "--replicas", "1", "--port", "0", "--no-store"]
    printed = subprocess.run(
        command, env=os.environ | {"RAY_AUTH_MODE": mode}, capture_output=True, text=True, timeout=120
    )
    assert printed.returncode != 0
    assert "RAY_AUTH_MODE is" in printed.stderr and len(printed.stderr.strip().splitlines()) == 1
