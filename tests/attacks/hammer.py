"""The server with the default model under everything at once: `python -m attacks.hammer`, or `make hammer`.

So many generated requests over all routes by several clients, some of which leave early, send slowly or have
no key. Beside them, clients with another key ask for as much as they may. Meanwhile two processes measure how
long `/health` takes and how long a client with a third key waits for one token. A request that is answered
with a 500, in a wrong shape or not at all is written to build/hammer, and `--again FILE` sends it once more.
The last line is JSON.

    python -m attacks.hammer --requests 100000 --clients 8 --seed 1
    python -m attacks.hammer --again build/hammer/1-4711.json
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from attacks.fuzz import Place, Printer
from attacks.harness import Answer, Server, serving
from attacks.limits import PROMISED
from attacks.manners import LEFT, Manner, drawn
from attacks.neighbours import Neighbours
from attacks.requests import LATE, Case, Client, Requests, wrong
from attacks.routes import Document
from hostile.glass import mutated, renamed

KEYS = {name: f"key-of-the-{name}" for name in ("hammer", "neighbour", "victim")}
FOLDER = Path("build/hammer")
_BLOCK = 100  # requests of one generator; every block has a seed of its own
_PROBE = Path(__file__).with_name("probe.py")
_HELD = re.compile(r'"seconds": ([\d.]+), "at": "(.*)"')
_FLAGS = ("--kv-memory", "500MB", "--timeout", "10", "--keep", "500", "--grace", "1")
_CLOSED = ("/v1/", "/api/", "/tokenize", "/detokenize", "/metrics")  # paths that need a key
_MOST_FILES = 200


class Prober:
    """Measures one kind of request all the time, in a process of its own."""

    def __init__(self, server: Server, *key: str) -> None:
        command = [sys.executable, "-I", "-S", str(_PROBE), server.host, str(server.port), *key]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self.seconds: list[float] = []
        self.statuses: Counter[str] = Counter()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            seconds, told = line.rstrip("\n").split(" ", 1)
            self.seconds.append(float(seconds))
            self.statuses[told] += 1

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join()

    def figures(self) -> dict[str, Any]:
        ordered = sorted(self.seconds) or [0.0]
        return {
            "longest_s": round(ordered[-1], 3),
            "p99_s": round(ordered[int(0.99 * len(ordered))], 3),
            "median_s": round(ordered[len(ordered) // 2], 3),
            "answers": dict(self.statuses),
        }


@dataclass
class Tally:
    """What has come of the requests so far."""

    routes: dict[str, Counter[str]] = field(default_factory=dict)
    statuses: Counter[str] = field(default_factory=Counter)
    findings: list[tuple[str, str]] = field(default_factory=list)  # the file of a request, and what was wrong
    done: int = 0
    hangs: int = 0


class Hammer:
    """Sends so many requests to one server, by several clients at once."""

    def __init__(self, server: Server, seed: int, requests: int, clients: int, limit: float) -> None:
        self._server, self._seed, self._requests, self._limit = server, seed, requests, limit
        self._clients = clients
        self._document = Document(server.get("/openapi.json").json())
        self._names = [
            (re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(route.path))), route)
            for route in self._document.routes
        ]
        self._place = Place(server)
        self._other = self._of_another_key()
        self._lock, self._refreshing = threading.Lock(), threading.Lock()
        self._printer = Printer("requests", requests)
        self._blocks = iter(range(-(-requests // _BLOCK)))
        self.tally = Tally()

    def _of_another_key(self) -> dict[str, Any]:
        victim = {"authorization": f"Bearer {KEYS['victim']}"}
        body = {"prompt": "mine", "sampling": {"max_tokens": 3}}
        run: dict[str, Any] = self._server.post("/api/runs", body, headers=victim).json()["runs"][0]
        return run

    def _refresh(self) -> None:
        """Makes new runs for those that somebody has deleted, or that newer ones have replaced."""
        with self._refreshing:
            if self._server.get(f"/api/runs/{self._place.run}").status == 404:
                self._place.refresh()
            if self._server.get(f"/api/runs/{self._other['id']}").status == 404:
                self._other = self._of_another_key()

    def run(self) -> None:
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self) -> None:
        client = Client(lambda: self._server.connect(self._limit), 0.3)
        while self._server.alive:
            with self._lock:
                block = next(self._blocks, None)
            if block is None:
                break
            self._refresh()
            rng = Random(f"{self._seed} hammer {block}")
            file = self._place.file
            made = Requests(
                self._document, rng, lambda rng, file=file: mutated(renamed(file, rng), rng), brief=True
            )
            for number in range(block * _BLOCK, min((block + 1) * _BLOCK, self._requests)):
                self._one(number, made.next(), rng, client)
                if not self._server.alive:
                    break
        client.close()

    def _one(self, number: int, case: Case, rng: Random, client: Client) -> None:
        manner, key = drawn(rng, case), rng.choices(("hammer", "victim", "wrong", None), (94, 2, 2, 2))[0]
        if rng.random() < 0.1:
            run, tree = self._other["id"], self._other["tree"]
        else:
            run, tree = self._place.any_run(number), self._place.tree
        sent = keyed(replace(case, fields=None).with_ids(run, tree), key)
        answer = manner.send(sent, client, lambda: self._server.connect(self._limit))
        trouble = judged(sent, key, answer)
        name = self._named(sent)
        told = str(answer.status) if isinstance(answer, Answer) else answer.partition(":")[0]
        with self._lock:
            tally = self.tally
            tally.done += 1
            tally.statuses[told] += 1
            tally.routes.setdefault(name, Counter())[told] += 1
            if trouble and self._server.alive:
                if answer == LATE:
                    tally.hangs += 1
                    self._server.process.send_signal(signal.SIGUSR1)  # the log tells where it stands
                tally.findings.append((self._save(number, case, manner, key, trouble), trouble))
            self._printer(tally.done, len(tally.findings))
        self._place.note(sent, answer if isinstance(answer, Answer) else "")

    def _named(self, case: Case) -> str:
        path = case.path.partition("?")[0]
        for pattern, route in self._names:
            if route.method == case.method and pattern.fullmatch(path):
                return f"{case.method} {route.path}"
        return "other"

    def _save(self, number: int, case: Case, manner: Manner, key: str | None, trouble: str) -> str:
        """Writes a request, with placeholders for ids, so that it can be sent again. Returns the file."""
        file = FOLDER / f"{self._seed}-{number}.json"
        if len(self.tally.findings) < _MOST_FILES:
            FOLDER.mkdir(parents=True, exist_ok=True)
            body = None if case.body is None else base64.b64encode(case.body).decode()
            saved = {**asdict(case), "body": body, "manner": asdict(manner), "key": key, "trouble": trouble}
            file.write_text(json.dumps(saved, indent=1))
        return str(file)


def keyed(case: Case, key: str | None) -> Case:
    """Returns the request with somebody's key, a wrong one, or none."""
    if key is None:
        return case
    return replace(case, headers={**case.headers, "authorization": f"Bearer {KEYS.get(key, 'no-such-key')}"})


def judged(case: Case, key: str | None, answer: Answer | str) -> str:
    """Returns what is wrong with an answer, or an empty text."""
    if isinstance(answer, str):
        return "" if answer == LEFT else answer
    if key not in KEYS and answer.status < 400 and case.path.startswith(_CLOSED) and case.method != "OPTIONS":
        return f"answered {answer.status} without a key"
    return wrong(case, answer)


@contextmanager
def attacked() -> Iterator[Server]:
    """A server with the default model, a store and three keys. It logs what holds up its loop for 50 ms."""
    folder = tempfile.mkdtemp(prefix="glassloop-hammer-")
    keys = [part for key in KEYS.values() for part in ("--api-key", key)]
    headers = {"authorization": f"Bearer {KEYS['hammer']}"}
    store = ("--store", str(Path(folder) / "runs.db"))
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {"PYTHONPATH": os.pathsep.join(str(Path(part).resolve()) for part in path.split(os.pathsep))}
    try:
        with serving(*_FLAGS, *store, *keys, headers=headers, env=env, program="attacks.watched") as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def hammer(seed: int, requests: int, clients: int, neighbours: int, limit: float) -> dict[str, Any]:
    """Returns what was seen."""
    began = time.monotonic()
    with attacked() as server, ExitStack() as stack:
        before = server.memory
        work = Hammer(server, seed, requests, clients, limit)
        beside = Neighbours(server, KEYS["neighbour"], neighbours, seed)
        health, token = Prober(server), Prober(server, KEYS["victim"])
        stack.callback(health.close)
        stack.callback(token.close)
        with beside:
            work.run()
        code = server.process.poll()
        stack.close()
        left = server.settle(60) if code is None else {}
        memory, peak = (server.memory, server.peak) if code is None else (0, 0)
        times = waited(server.process.pid) if code is None else {}
        log = server.log_text()
        held = held_up(log)
    tally = work.tally
    if any(left.values()):
        tally.findings.append(("", f"left behind: {left}"))
    if code is not None or tally.hangs:
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / f"{seed}.log").write_text(log)
    return {
        "seed": seed,
        "requests": tally.done,
        "crashes": int(code is not None),
        "hangs": tally.hangs,
        "answers_5xx": {told: times for told, times in tally.statuses.items() if told.startswith("5")},
        "findings": [f"{file}: {trouble}" for file, trouble in tally.findings],
        "statuses": dict(sorted(tally.statuses.items())),
        "routes": {name: dict(sorted(told.items())) for name, told in sorted(tally.routes.items())},
        "neighbours": dict(sorted(beside.statuses.items())),
        "health": health.figures(),
        "token": token.figures(),
        "held_up": held,
        "rss_mb": {"before": before >> 20, "after": memory >> 20, "peak": peak >> 20},
        "seconds_of_threads": times,
        "load": round(os.getloadavg()[0], 1),
        "seconds": round(time.monotonic() - began, 1),
    }


def waited(pid: int) -> dict[str, float]:
    """Returns for how many seconds the thread of the event loop, and all threads together, have computed and
    have waited for a processor because the machine was busy."""
    times = {}
    for name, files in (("loop", f"{pid}/schedstat"), ("all", "*/schedstat")):
        rows = [file.read_text().split() for file in Path(f"/proc/{pid}/task").glob(files)]
        for place, what in enumerate(("computed", "queued")):
            times[f"{name}_{what}"] = round(sum(int(row[place]) for row in rows) / 1e9, 1)
    return times


def held_up(log: str) -> dict[str, list[float]]:
    """Returns for each place of the log that held up the event loop how often it did, and for how long."""
    places: dict[str, list[float]] = {}
    for line in log.splitlines():
        if '"event": "held_up"' in line and (found := _HELD.search(line)):
            times, longest = places.get(found[2], [0, 0.0])
            places[found[2]] = [times + 1, max(longest, float(found[1]))]
    return dict(sorted(places.items(), key=lambda place: -place[1][1]))


def again(file: Path, limit: float) -> int:
    """Sends a request that was written to a file, and prints the answer. Returns 1 if it is wrong."""
    saved = json.loads(file.read_text())
    body = None if saved["body"] is None else base64.b64decode(saved["body"])
    case = Case(saved["method"], saved["path"], saved["headers"], body, saved["what"])
    with attacked() as server:
        place = Place(server)
        sent = keyed(case.with_ids(place.run, place.tree), saved["key"])
        client = Client(lambda: server.connect(limit), 0.3)
        answer = Manner(**saved["manner"]).send(sent, client, lambda: server.connect(limit))
        trouble = judged(sent, saved["key"], answer)
        print(sent.told())
        print(answer if isinstance(answer, str) else f"{answer.status} {answer.body[:2000]!r}")
        if trouble:
            print(server.log_text()[-4000:])
    return 1 if trouble else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m attacks.hammer", description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=8, help="that send generated requests")
    parser.add_argument("--neighbours", type=int, default=3, help="clients that ask for much")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds without an answer that are a hang")
    parser.add_argument("--again", type=Path, metavar="FILE", help="send this request of build/hammer alone")
    given = parser.parse_args()
    if given.again is not None:
        return again(given.again, given.limit)
    seen = hammer(given.seed, given.requests, given.clients, given.neighbours, given.limit)
    for finding in seen["findings"][:_MOST_FILES]:
        print(finding)
    for name, most in (("health", PROMISED.health), ("token", PROMISED.gap)):
        if seen[name]["longest_s"] > most:
            print(f"{name}: {seen[name]['longest_s']} s; {most} s on an idle machine are promised")
    print(json.dumps(seen))
    return 1 if seen["crashes"] or seen["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
