"""The measurements for one model. All engines are loaded first. Then every workload of every round is run
on all engines in turn, starting with another one each time, so that noise affects all alike.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from bench.catalog import ROOT, Peer
from bench.environments import Absent, log_file, python_for
from bench.machine import ReadSpeed
from bench.process import Engine, environment, start
from bench.workloads import USER_ANSWER, USER_PROMPT, Workload

_PROMPT = "The capital of France is"


@dataclass
class Measured:
    """The results for one model. Samples are by workload, then by engine, one per round."""

    model: str
    file: str
    bytes_per_token: int
    samples: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)
    said: dict[str, dict[str, Any]] = field(default_factory=dict)  # version and details, by engine
    absent: dict[str, str] = field(default_factory=dict)  # the reason, by engine or by engine and workload
    read_speed: list[float] = field(default_factory=list)  # bytes per second, one per round
    accuracy: dict[str, Any] | None = None

    def add(self, workload: str, peer: str, value: float | None) -> None:
        self.samples.setdefault(workload, {}).setdefault(peer, []).append(value)


class FreshIds:
    """Passages of one long text, each with a different beginning from all before it."""

    def __init__(self, ids: list[int]) -> None:
        self._ids, self._at = ids, 0

    def __call__(self, count: int) -> list[int]:
        self._at = (self._at + 61) % (len(self._ids) - count)
        return self._ids[self._at : self._at + count]


@contextmanager
def loaded(peers: list[Peer], model: Path, threads: int, measured: Measured) -> Iterator[dict[str, Engine]]:
    """Starts all available engines, and closes them at the end in any case."""
    engines: dict[str, Engine] = {}
    try:
        for peer in peers:
            say(f"{measured.model}: loading {peer.name}")
            try:
                engines[peer.name], measured.said[peer.name] = start(peer, str(model), threads)
            except Absent as error:
                measured.absent[peer.name] = str(error)
        yield engines
    finally:
        for engine in engines.values():
            engine.close()


def measure(
    engines: dict[str, Engine],
    workloads: list[Workload],
    rounds: int,
    ids: FreshIds,
    speed: ReadSpeed,
    into: Measured,
) -> None:
    """Runs all rounds. Round 0 is a warm-up and is not counted."""
    asked = [workload for workload in workloads if workload.question is not None]
    for round_ in range(rounds + 1 if asked else 0):
        for workload in asked:
            assert workload.question is not None
            question = workload.question(ids)
            for name in rotated(list(engines), round_):
                say(f"{into.model}: round {round_} of {rounds}, {workload.title}, {name}")
                value = _value(engines[name], workload, question, into)
                if round_ > 0:
                    into.add(workload.name, name, value)
        if round_ > 0:
            into.read_speed.append(speed.measure())


def rotated(names: list[str], by: int) -> list[str]:
    by %= max(len(names), 1)
    return names[by:] + names[:by]


def _value(engine: Engine, workload: Workload, question: dict[str, Any], into: Measured) -> float | None:
    name = engine.peer.name
    if f"{name} {workload.name}" in into.absent or name in into.absent:
        return None
    sleep(0.05)  # until the threads of the previous engine are asleep
    try:
        return workload.value(engine.ask(**question)["seconds"])
    except Absent as error:
        into.absent[f"{name} {workload.name}" if engine.alive else name] = str(error)
        return None


def cold_starts(peers: list[Peer], model: Path, threads: int, rounds: int, into: Measured) -> None:
    """Measures milliseconds from process start to the first line. Round 0 fills the page cache."""
    for round_ in range(rounds + 1):
        for name in rotated([peer.name for peer in peers if peer.name not in into.absent], round_):
            peer = next(peer for peer in peers if peer.name == name)
            say(f"{into.model}: cold start {round_} of {rounds}, {name}")
            variant = into.said.get(name, {}).get("variant", {})
            value = _cold_start(peer, model, threads, variant)
            if round_ > 0:
                into.add("cold-start", name, value)


def _cold_start(peer: Peer, model: Path, threads: int, variant: dict[str, Any]) -> float | None:
    with log_file(peer).open("a") as log:
        command = [str(python_for(peer)), *peer.first_token_command(model, _PROMPT, variant)]
        began = perf_counter()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, cwd=ROOT, env=environment(threads)
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = perf_counter() - began
        process.communicate()
    return seconds * 1000 if line and process.returncode == 0 else None


def memory(peers: list[Peer], model: Path, threads: int, ids: FreshIds, into: Measured) -> None:
    """Measures the peak memory, in megabytes, of a new process that computes one prompt and its answer."""
    prompt = ids(USER_PROMPT)
    for peer in peers:
        if peer.name in into.absent:
            continue
        say(f"{into.model}: memory, {peer.name}")
        value = None
        try:
            engine, _ = start(peer, str(model), threads, into.said.get(peer.name))
            try:
                value = engine.ask(do="one_user", ids=prompt, steps=USER_ANSWER)["peak_bytes"] / 1e6
            finally:
                engine.close()
        except Absent as error:
            into.absent[f"{peer.name} memory"] = str(error)
        into.add("memory", peer.name, value)


def say(what: str) -> None:
    """Shows the progress on one line of the terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)
