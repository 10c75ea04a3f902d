"""Plays scenarios for as long as is wanted, in several processes, or one that a file has:

    PYTHONPATH=tests python -m crossings.run --seconds 7200 --jobs 2 [--seed N] [--without revise,lens,…]
    PYTHONPATH=tests python -m crossings.run build/crossings/failure-17.json

A scenario that breaks a law is made small and written to build/crossings. The last line is JSON: the numbers
of scenarios, runs, comparisons and failures. `--without` takes features (draw.py), options of `Sampling`,
questions, and laws (`law:told`).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import IO, Any

FOLDER = Path("build/crossings")
FIRST = 100_000  # the seed with which the long run begins; those of the tests are below
_SHRUNK = 3  # failures of one law that a worker makes small; the others are only counted
_HUNG = 3  # the exit status of a worker whose scenario does not end
_PROGRESS = 60.0  # seconds between two lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="crossings.run", description=__doc__.split("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, help="a scenario to play again")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=FIRST, help="of the first scenario")
    parser.add_argument("--without", default="", help="features, options and laws to leave out")
    parser.add_argument("--every", type=int, default=0, help=argparse.SUPPRESS)  # of a worker: its stride
    given = parser.parse_args(arguments)
    without = [word for word in given.without.split(",") if word]
    if given.file is not None:
        return _play_file(given.file)
    if given.every:
        return _work(given.seed, given.every, given.seconds, without)
    return _Fuzz(given.seconds, given.jobs, given.seed, given.without).run()


# ── one scenario ───────────────────────────────────────────────────────────────────────────────────────────


def _play_file(path: Path) -> int:
    scenario = json.loads(path.read_text())
    os.environ["GLASSLOOP_THREADS"] = str(scenario.get("threads", 1))  # before anything is imported
    from crossings.guard import Failure, guarded

    found = guarded(scenario)
    if isinstance(found, Failure):
        print(found.stack, file=sys.stderr)
        print(f"{path}: {found.line}")
        return 1
    print(f"{path}: every law holds ({found.comparisons} comparisons)")
    return 0


# ── a worker ───────────────────────────────────────────────────────────────────────────────────────────────


def _work(seed: int, every: int, seconds: float, without: Sequence[str]) -> int:
    """Plays the scenarios of every so many seeds, and prints a line of JSON for each."""
    from crossings.draw import check_words, draw
    from crossings.guard import Failure, guarded

    logging.disable()  # of listeners that raise, as some are meant to
    check_words(without)
    end, shrunk = monotonic() + seconds, Counter[str]()
    while monotonic() < end:
        scenario = draw(seed, without)
        scenario |= {"without": list(without), "threads": int(os.environ.get("GLASSLOOP_THREADS", "1"))}
        found = guarded(scenario)
        if isinstance(found, Failure):
            shrunk[found.law] += 1
            told: dict[str, Any] = {"seed": seed, "law": found.law}
            if shrunk[found.law] <= _SHRUNK:
                told["line"] = f"{write_small(scenario, found)}: {found.line}"
            print(json.dumps(told), flush=True)
            if found.law == "hang":
                os._exit(_HUNG)
        else:
            told = {"seed": seed, "runs": found.counts["runs"], "comparisons": found.comparisons}
            print(json.dumps(told), flush=True)
        seed += every
    return 0


def write_small(scenario: dict[str, Any], failure: Any) -> Path:
    """Makes a failing scenario small and writes it. Returns the file."""
    from crossings.guard import Failure, guarded
    from crossings.shrink import shrink

    def fails(smaller: dict[str, Any]) -> bool:
        found = guarded(smaller)
        return isinstance(found, Failure) and found.law == failure.law

    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"failure-{scenario['seed']}.json"
    path.write_text(json.dumps(scenario, indent=1))
    if failure.law != "hang":  # each attempt would leave another thread that never ends
        path.write_text(json.dumps(shrink(scenario, fails), indent=1))
    return path


# ── all workers ────────────────────────────────────────────────────────────────────────────────────────────


class _Fuzz:
    """Starts the workers, starts one again that hung or died, and adds up what they tell."""

    def __init__(self, seconds: float, jobs: int, seed: int, without: str) -> None:
        self._end, self._jobs, self._without = monotonic() + seconds, jobs, without
        self._next = [seed + number for number in range(jobs)]
        self._news: SimpleQueue[tuple[int, dict[str, Any] | None]] = SimpleQueue()
        self._sums: Counter[str] = Counter()
        self._laws: Counter[str] = Counter()

    def run(self) -> int:
        for number in range(self._jobs):
            self._start(number)
        working, said, began = self._jobs, monotonic(), monotonic()
        while working:
            try:
                number, told = self._news.get(timeout=1)
            except Empty:
                continue
            finally:
                if monotonic() - said > _PROGRESS:
                    said = monotonic()
                    print(f"{said - began:.0f} s: {self._summary()}", flush=True)
            if told is not None:
                self._add(number, told)
            elif monotonic() < self._end:
                self._start(number)
            else:
                working -= 1
        print(json.dumps({**self._sums, "failures": sum(self._laws.values()), "laws": dict(self._laws)}))
        return 1 if self._laws or not self._sums["scenarios"] else 0

    def _start(self, number: int) -> None:
        left = max(1.0, self._end - monotonic())
        command = [
            sys.executable,
            "-m",
            "crossings.run",
            "--every",
            str(self._jobs),
            "--seconds",
            f"{left:.0f}",
        ]
        command += ["--seed", str(self._next[number]), "--without", self._without]
        environment = os.environ | {"GLASSLOOP_THREADS": str(1 + number % 2)}
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert worker.stdout is not None
        Thread(target=self._listen, args=(number, worker, worker.stdout), daemon=True).start()

    def _listen(self, number: int, worker: subprocess.Popen[str], lines: IO[str]) -> None:
        for line in lines:
            self._news.put((number, json.loads(line)))
        status = worker.wait()
        if status not in (0, _HUNG):
            seed = self._next[number]
            self._news.put((number, {"seed": seed, "law": "died", "line": f"seed {seed}: status {status}"}))
        self._news.put((number, None))

    def _add(self, number: int, told: dict[str, Any]) -> None:
        self._next[number] = told["seed"] + self._jobs
        self._sums["scenarios"] += 1
        if "law" in told:
            self._laws[told["law"]] += 1
            if "line" in told:
                print(told["line"], flush=True)
            return
        for name in ("runs", "comparisons"):
            self._sums[name] += told[name]

    def _summary(self) -> str:
        return ", ".join(f"{value} {name}" for name, value in {**self._sums, **self._laws}.items())


if __name__ == "__main__":
    sys.exit(main())
