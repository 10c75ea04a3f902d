"""Replicas on a real Ray on this machine: streams go on when a replica is killed, with the same tokens and
numbers. The long test with three nodes is behind GLASSLOOP_CLUSTER=1 (`make test-cluster`).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from server.conftest import Server, serving

from glassloop import LLM, Sampling
from glassloop.trace.file import from_bytes

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
