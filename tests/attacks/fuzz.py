"""The long run: `python -m attacks.fuzz`, or `make fuzz`. So many generated requests over all routes of a
server with a tiny model, and so many mutated files and templates in child processes. A finding is printed
with the seed and the number that make it again; the last line is JSON.

    python -m attacks.fuzz                        10^5 requests (some minutes) and 10^5 files
    python -m attacks.fuzz --only glass --count 2000 --seed 7
    python -m attacks.fuzz --only requests --first 41234 --count 1
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from attacks import batches
from attacks.harness import Answer, Server, Watch, serving
from attacks.inputs import KINDS
from attacks.limits import PROMISED
from attacks.requests import LATE, RUN, Case, Client, Requests, wrong
from attacks.routes import Document
from hostile.glass import mutated, renamed
from hostile.tiny import write_tiny

_REQUESTS = "requests"
_CLASSES = (_REQUESTS, *KINDS)
_HANG = 30.0  # seconds without an answer, or with one input
_BLOCK = 500  # requests of one generator; every block has a seed of its own, so that one can be repeated
_SHOWN = 40
_MOST_CRASHES = 20
_FLAGS = ("--kv-memory", "16MB", "--timeout", "2", "--keep", "300", "--grace", "1")


class Printer:
    """Progress on one line of a terminal, and now and then a line where there is none."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._began = self._last = time.monotonic()
        self._every = 1.0 if sys.stderr.isatty() else 15.0

    def __call__(self, done: int, findings: int) -> None:
        now = time.monotonic()
        if now - self._last < self._every and done < self._total:
            return
        self._last = now
        rate = done / max(now - self._began, 1e-9)
        end = "\r" if sys.stderr.isatty() else "\n"
        text = f"{self._what}: {done:,} of {self._total:,}, {rate:,.0f} a second, {findings} findings   "
        print(text, end=end, file=sys.stderr, flush=True)


# ── requests ───────────────────────────────────────────────────────────────────────────────────────────────


class Place:
    """Runs that are on the server, for requests that need one: a good one, and what was imported last."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._imported: str | None = None
        self.refresh()

    def any_run(self, number: int) -> str:
        return self._imported if self._imported is not None and number % 3 == 0 else self.run

    def note(self, case: Case, answer: Answer | str) -> None:
        if isinstance(answer, str):
            return
        if case.path == "/api/runs/import" and answer.status == 201:
            self._imported = answer.json()["runs"][0]["id"]
        elif case.method == "DELETE" and answer.status == 204:
            if self._imported is not None and self._imported in case.path:
                self._imported = None
            else:
                self.refresh()

    def refresh(self) -> None:
        with self._lock:
            body = {"prompt": "the sea", "sampling": {"max_tokens": 6, "seed": 1, "n": 2}}
            until, made = time.monotonic() + 20, None
            while True:  # another worker may delete it before its file is there
                if made is None or made.status == 404:
                    run = self._server.post("/api/runs", body).json()["runs"][0]
                made = self._server.get(f"/api/runs/{run['id']}/export")
                if made.status == 200:
                    break
                assert time.monotonic() < until, made
                time.sleep(0.02)
            self.run: str = run["id"]
            self.tree: str = run["tree"]
            self.file = made.body


class Session:
    """So many requests by several workers, on one server after the other where one is killed."""

    def __init__(self, seed: int, count: int, first: int, workers: int) -> None:
        self._seed, self._first, self._end = seed, first, first + count
        self._workers = workers
        self._blocks = list(range(first // _BLOCK, -(-self._end // _BLOCK)))
        self._printer, self._lock = Printer(_REQUESTS, count), threading.Lock()
        self._last: dict[int, tuple[int, Case]] = {}  # what each worker sent last
        self.statuses: Counter[str] = Counter()
        self.findings: list[tuple[int, str]] = []
        self.done = self.crashes = self.hangs = 0
        self.health, self.grown = 0.0, 0

    def run(self, model: Path) -> None:
        while self._blocks and self.crashes < _MOST_CRASHES:
            with serving(*_FLAGS, model=model) as server, Watch(server, slow=self._note_slow) as watch:
                finished = self._attack(server)
            self.health = max(self.health, watch.report.health)
            self.grown = max(self.grown, watch.report.grown)
            if watch.report.code is not None:
                self.crashes += 1
                told = "\n    ".join(f"#{number} {case.told()}" for number, case in self._last.values())
                what = f"the server ended with {watch.report.code}; one of:\n    {told}"
                self.findings.append((-1, what))
                # What was under way is not tried again: it would end the next server as well.
                finished |= {number // _BLOCK for number, _ in self._last.values()}
            self._blocks = [block for block in self._blocks if block not in finished]

    def _attack(self, server: Server) -> set[int]:
        """The blocks that were finished before all was done or the server ended."""
        document, place = Document(server.get("/openapi.json").json()), Place(server)
        waiting: queue.Queue[int] = queue.Queue()
        for block in self._blocks:
            waiting.put(block)
        finished: set[int] = set()

        def work(me: int) -> None:
            client = Client(lambda: server.connect(_HANG), 0.2)
            while server.alive:
                try:
                    block = waiting.get_nowait()
                except queue.Empty:
                    break
                if self._block(me, block, client, document, place, server):
                    finished.add(block)
            client.close()

        threads = [threading.Thread(target=work, args=(me,), daemon=True) for me in range(self._workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if server.alive:
            left = server.settle()
            if any(left.values()) or server.left_in_temporary():
                self.findings.append((-1, f"left behind: {left}, {server.left_in_temporary()}"))
        return finished

    def _block(
        self, me: int, block: int, client: Client, document: Document, place: Place, server: Server
    ) -> bool:
        """Send the requests of one block; whether the server has seen it through."""
        rng, file = Random(f"{self._seed} requests {block}"), place.file
        made = Requests(document, rng, lambda rng: mutated(renamed(file, rng), rng))
        for number in range(block * _BLOCK, (block + 1) * _BLOCK):
            case = made.next()
            if not self._first <= number < self._end:
                continue
            run = place.any_run(number)
            if run != place.run and RUN in case.path:  # which may be refused for itself, before any field
                case = replace(case, fields=None)
            case = case.with_ids(run, place.tree)
            self._last[me] = number, case
            answer = client.send(case)
            if not server.alive:
                return False
            self._note(number, case, answer)
            place.note(case, answer)
        return True

    def _note_slow(self, seconds: float) -> None:
        """Note which requests were under way when `/health` waited."""
        told = "\n    ".join(f"#{number} {case.told()}" for number, case in list(self._last.values()))
        with self._lock:
            self.findings.append(
                (-1, f"/health waited {seconds:.2f} s after {self.done} requests; under way:\n    {told}")
            )

    def _note(self, number: int, case: Case, answer: Answer | str) -> None:
        trouble = answer if isinstance(answer, str) else wrong(case, answer)
        with self._lock:
            self.done += 1
            self.hangs += answer == LATE
            self.statuses[str(answer.status) if isinstance(answer, Answer) else "none"] += 1
            if trouble:
                self.findings.append((number, f"{trouble}\n    {case.told()}"))
            self._printer(self.done, len(self.findings))


def fuzz_requests(seed: int, count: int, first: int, workers: int) -> dict[str, Any]:
    began, session = time.monotonic(), Session(seed, count, first, workers)
    with tempfile.TemporaryDirectory(prefix="glassloop-fuzz-") as folder:
        session.run(write_tiny(Path(folder) / "tiny.gguf"))
    _show(_REQUESTS, seed, session.findings, line=0)
    failed = sum(times for code, times in session.statuses.items() if code == "500")
    return {
        "kind": _REQUESTS,
        "cases": session.done,
        "crashes": session.crashes,
        "hangs": session.hangs,
        "errors": len(session.findings),
        "answers_500": failed,
        "statuses": dict(sorted(session.statuses.items())),
        "health_s": round(session.health, 3),
        "grown_mb": session.grown >> 20,
        "seconds": round(time.monotonic() - began, 1),
    }


def _show(kind: str, seed: int, findings: list[tuple[int, str]], line: int) -> None:
    """The first findings whole, and all of them counted by one of their lines."""
    for number, what in findings[:_SHOWN]:
        print(f"{kind}, seed {seed}, #{number}: {what}")
    alike = Counter(what.strip().splitlines()[line][:140] for _, what in findings)
    for what, times in alike.most_common(_SHOWN):
        print(f"{times:6d} x {what}")


# ── files ──────────────────────────────────────────────────────────────────────────────────────────────────


def fuzz_files(kind: str, seed: int, count: int, first: int, seconds: float) -> dict[str, Any]:
    began, printer = time.monotonic(), Printer(kind, count)
    tally = batches.run(
        kind,
        seed,
        count,
        first=first,
        seconds=seconds,
        progress=lambda tally: printer(tally.count, len(tally.findings)),
    )
    _show(kind, seed, tally.findings, line=-1)
    return {**tally.figures(), "answers_500": 0, "seconds": round(time.monotonic() - began, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m attacks.fuzz", description="Hostile inputs, for minutes."
    )
    parser.add_argument(
        "--only", choices=_CLASSES, action="append", help="this class alone; several are allowed"
    )
    parser.add_argument(
        "--count", type=int, default=100_000, help="requests, and files of all kinds together"
    )
    parser.add_argument(
        "--first", type=int, default=0, help="the number to begin with, to go on or to repeat"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=3, help="connections that send requests at once")
    parser.add_argument("--seconds", type=float, default=_HANG, help="that one file may take")
    given = parser.parse_args()
    chosen = given.only or list(_CLASSES)
    kinds = [each for each in chosen if each != _REQUESTS]
    rows = []
    if _REQUESTS in chosen:
        rows.append(fuzz_requests(given.seed, given.count, given.first, given.workers))
    for kind in kinds:
        count = given.count if given.only else given.count // len(kinds)
        rows.append(fuzz_files(kind, given.seed, count, given.first, given.seconds))
    names = ("kind", "cases", "crashes", "hangs", "answers_500", "errors", "heavy", "seconds")
    print("\n" + "  ".join(f"{name:>11}" for name in names))
    for row in rows:
        print("  ".join(f"{row.get(name, 0)!s:>11}" for name in names))
    bad = sum(int(row.get(name, 0)) for row in rows for name in ("crashes", "hangs", "errors", "heavy"))
    slow = [row for row in rows if row.get("health_s", 0) > PROMISED.health]
    total = {"seed": given.seed, "cases": sum(row["cases"] for row in rows), "findings": bad, "classes": rows}
    print(json.dumps(total))
    return 1 if bad or slow else 0


if __name__ == "__main__":
    sys.exit(main())
