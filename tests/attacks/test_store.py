"""A store under attack: DELETE at once, a lock held by another process, files that are no store, a full disk,
a second server, a restart with many runs, a kill amid streams. What the server says of the store is true.
"""

from __future__ import annotations

import contextlib
import http.client
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks.harness import Server, Watch, serving
from attacks.limits import FACTOR, LIMITS
from engine.random_runs import PROMPT, small_llm
from waiting import awake, wait_until

from glassloop import Sampling, Store

_ASK = {"prompt": "x", "max_tokens": 2, "ignore_eos": True}


def _flags(store: str | Path, *more: str) -> tuple[str, ...]:
    return ("--kv-memory", "16MB", "--grace", "2", "--store", str(store), *more)


def _complete(server: Server, **options: object) -> str:
    answer = server.post("/v1/completions", {**_ASK, **options})
    assert answer.status == 200, answer.body
    return answer.headers["x-glassloop-run"].split(", ")[0]


def _ids(server: Server, limit: int = 1000) -> set[str]:
    answer = server.get(f"/api/runs?limit={limit}")
    assert answer.status == 200, answer.body
    return {run["id"] for run in answer.json()["runs"]}


def _written(store: Path) -> int:
    with contextlib.closing(sqlite3.connect(store)) as connection:
        (count,) = connection.execute("SELECT COUNT(*) FROM runs WHERE finish_reason IS NOT NULL").fetchone()
    return int(count)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def test_what_is_deleted_is_gone(tiny_file: Path, store: Path) -> None:
    with serving(*_flags(store), model=tiny_file) as server:
        deleted = set()
        for _ in range(30):
            run = _complete(server)
            assert server.ask("DELETE", f"/api/runs/{run}").status == 204
            assert server.get(f"/api/runs/{run}").status == 404
            deleted.add(run)
        time.sleep(0.5)
        assert not deleted & _ids(server)
        assert all(server.get(f"/api/runs/{run}").status == 404 for run in deleted)
        kept = _complete(server)
        assert server.end() == 0
    with serving(*_flags(store), model=tiny_file) as server:
        assert _ids(server) == {kept}


@contextlib.contextmanager
def _write_lock(store: Path, seconds: float) -> Iterator[None]:
    """Holds the lock within a `with` statement, for so long at most."""
    connection = sqlite3.connect(store, isolation_level=None, check_same_thread=False)
    timer = threading.Timer(seconds, connection.rollback)
    try:
        connection.execute("BEGIN IMMEDIATE")
        timer.start()
        yield
    finally:
        timer.cancel()
        timer.join()
        connection.close()


def test_a_lock_of_another_process_holds_up_nobody(tiny_file: Path, store: Path) -> None:
    with serving(*_flags(store), model=tiny_file) as server:
        run = _complete(server)
        wait_until(lambda: _written(store) == 1)
        with Watch(server) as watch, _write_lock(store, 60 if FACTOR else 1.5):
            for _ in range(60 if FACTOR else 12):
                _complete(server)
            answer = server.ask("DELETE", f"/api/runs/{run}", timeout=120)
            listed = server.get("/api/runs?limit=5", timeout=120)
        watch.report.check()
        assert listed.status in (200, 503)
        # It is gone, or it says that it is not.
        if answer.status == 204:
            time.sleep(0.5)
            assert server.get(f"/api/runs/{run}").status == 404
        else:
            assert answer.status in (500, 503, 507) and answer.error
        assert server.get("/health").status == 200
        later = _complete(server)
        assert server.end() == 0
    with serving(*_flags(store), model=tiny_file) as server:
        assert later in _ids(server)


def _unusable(kind: str, folder: Path) -> Path:
    path = folder / "store.db"
    if kind == "a folder":
        path.mkdir()
    elif kind == "garbage":
        path.write_bytes(b"not a database at all " * 500)
    elif kind == "another database":
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE runs (x)")
            connection.commit()
    elif kind == "a version to come":
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA user_version = 99")
            connection.execute("CREATE TABLE t (x)")
            connection.commit()
    elif kind == "below a file":
        path.write_bytes(b"")
        return path / "below.db"
    elif kind == "not a place":
        return Path("/proc/nothing/store.db")
    elif kind == "a device":
        return Path("/dev/full")
    return path


@pytest.mark.parametrize(
    "kind",
    [
        "a folder",
        "garbage",
        "another database",
        "a version to come",
        "below a file",
        "not a place",
        "a device",
    ],
)
def test_an_unusable_store_is_said_at_the_start(tiny_file: Path, tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-m", "glassloop", "serve", "--port", "0", "--model", str(tiny_file)]
    process = subprocess.Popen(
        [*command, *_flags(_unusable(kind, tmp_path))],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        _, said = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise AssertionError("the server starts on a store that it cannot use") from None
    assert process.returncode == 2 and said.count("\n") == 1 and said.startswith("glassloop: "), said


def test_a_full_store_is_told(tiny_file: Path, store: Path) -> None:
    """Another process takes all the pages that the file may have: writes fail from then on."""
    with serving(*_flags(store), model=tiny_file) as server:
        _complete(server)
        wait_until(lambda: _written(store) == 1)
        log = len(server.log_text())
        with contextlib.closing(sqlite3.connect(store)) as connection:
            # A trigger is part of the file, so it holds for the server's connection too.
            refuse = "SELECT RAISE(FAIL, 'database or disk is full')"
            connection.execute(f"CREATE TRIGGER full BEFORE INSERT ON runs BEGIN {refuse}; END")
            connection.commit()
        runs = [_complete(server) for _ in range(5)]
        wait_until(lambda: "full" in server.log_text()[log:])
        wait_until(lambda: server.get("/health").json()["status"] != "ok")
        listed = _ids(server)
        assert set(runs) <= listed  # they are still in memory
        assert server.left_in_temporary() == []
        answer = server.get("/api/runs")
        assert str(store) not in answer.body.decode()


def test_servers_share_a_store_and_prune_their_own_runs_only(tiny_file: Path, store: Path) -> None:
    """Two servers and another process write at once. One of them is told to keep 3 of its runs."""
    others = Store(store)
    made = [small_llm().generate(PROMPT, Sampling(max_tokens=3, seed=seed)) for seed in range(25)]
    others.add(*made[:12])
    runs: dict[str, list[str]] = {"first": [], "second": []}
    with (
        serving(*_flags(store), model=tiny_file) as first,
        serving(*_flags(store, "--keep", "3"), model=tiny_file) as second,
    ):

        def ask(name: str, server: Server) -> None:
            for _ in range(60):  # it prunes after 50
                runs[name].append(_complete(server))

        threads = [threading.Thread(target=ask, args=each) for each in (("first", first), ("second", second))]
        for thread in threads:
            thread.start()
        for run in made[12:]:
            others.add(run)
        for thread in threads:
            thread.join()
        assert second.end() == 0
        kept = {run.id for run in made} | set(runs["first"])
        assert _ids(first) == kept | set(runs["second"][-3:])
        first.end(signal.SIGKILL)
    with serving(*_flags(store, "--keep", "3"), model=tiny_file) as third:  # it has made none of them
        assert _ids(third) == kept | set(runs["second"][-3:])
        assert third.end() == 0
    assert {entry.id for entry in others.list()} == kept | set(runs["second"][-3:])
    assert all(others.run(entry.id) is not None for entry in others.list())


def test_the_list_after_a_restart_is_quick(tiny_file: Path, store: Path) -> None:
    """Families of many samples and a chain of forks, listed by a server that has just started."""
    groups, samples = (6, 128) if FACTOR else (3, 64)
    with serving(*_flags(store), model=tiny_file) as server:
        for _ in range(groups):
            run = _complete(server, n=samples, max_tokens=20)
        for _ in range(40):
            fork = server.post(f"/api/runs/{run}/fork", {"at": 1, "sampling": {"max_tokens": 3}})
            run = fork.json()["runs"][0]["id"]
            server.settle()
        before = _ids(server)
        assert server.end() == 0
    with serving(*_flags(store), model=tiny_file) as server:
        with Watch(server) as watch:
            began = awake()
            listed = _ids(server)
            took = awake() - began
        assert listed == before
        report = watch.report.check()
        assert took < LIMITS.health and report.grown < 150 << 20, (took, report.grown)


def test_a_bad_row_hides_no_other(tiny_file: Path, store: Path) -> None:
    with serving(*_flags(store), model=tiny_file) as server:
        runs = [_complete(server) for _ in range(6)]
        assert server.end() == 0
    with contextlib.closing(sqlite3.connect(store)) as connection:
        connection.execute("UPDATE runs SET data = X'0011' WHERE id = ?", (runs[1],))
        connection.execute("UPDATE runs SET prompt = X'FF', seed = 'x' WHERE id = ?", (runs[2],))
        connection.commit()
    with serving(*_flags(store), model=tiny_file) as server:
        listed = _ids(server)
        assert set(runs) - {runs[1], runs[2]} <= listed
        for run in runs:
            assert server.get(f"/api/runs/{run}").status < 500
            assert server.get(f"/api/runs/{run}/explain/0").status < 500
        good = server.get(f"/api/runs/{runs[3]}").json()
        assert good["id"] == runs[3]
        assert server.ask("DELETE", f"/api/runs/{runs[1]}").status in (204, 404)


def test_a_kill_amid_streams_loses_nothing_that_was_finished(tiny_file: Path, store: Path) -> None:
    with serving(*_flags(store), model=tiny_file) as server:
        finished = [_complete(server, seed=number) for number in range(10)]
        texts = {run: server.get(f"/api/runs/{run}").json()["text"] for run in finished}
        wait_until(lambda: _written(store) == len(finished))
        connections = []
        for _ in range(10):
            connection = http.client.HTTPConnection(server.host, server.port, timeout=120)
            body = b'{"prompt": "x", "max_tokens": 400, "ignore_eos": true, "stream": true, "n": 4}'
            connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
            connections.append(connection)
        connections[-1].getresponse().readline()
        server.end(signal.SIGKILL)
        for connection in connections:
            connection.close()
    with contextlib.closing(sqlite3.connect(store)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with serving(*_flags(store), model=tiny_file) as server:
        assert set(finished) <= _ids(server)
        assert {run: server.get(f"/api/runs/{run}").json()["text"] for run in finished} == texts


def test_a_restart_of_postgresql_and_a_kill_lose_nothing_that_was_finished(tiny_file: Path, postgres) -> None:
    url = postgres.new_database()
    with serving(*_flags(url), model=tiny_file) as server, serving(*_flags(url), model=tiny_file) as other:
        assert "runs are kept in postgresql://tester@" in server.log_text()
        finished = [_complete(server) for _ in range(5)]
        postgres.stop()
        finished += [_complete(server) for _ in range(5)]
        postgres.start()
        finished += [_complete(server) for _ in range(5)]
        wait_until(lambda: set(finished) <= _ids(other))  # any server finds any run
        texts = {run: server.get(f"/api/runs/{run}").json()["text"] for run in finished}
        assert server.get("/health").json()["status"] == "ok"
        connection = http.client.HTTPConnection(server.host, server.port, timeout=120)
        body = b'{"prompt": "x", "max_tokens": 400, "ignore_eos": true, "stream": true}'
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        connection.getresponse().readline()
        server.end(signal.SIGKILL)
        connection.close()
        assert {run: other.get(f"/api/runs/{run}").json()["text"] for run in finished} == texts
        forked = other.post(f"/api/runs/{finished[0]}/fork", {"at": 1, "sampling": {"max_tokens": 3}})
        assert forked.status == 201, forked.body
        assert other.end() == 0
        assert "s3cret" not in server.log_text() + other.log_text()
    fork = forked.json()["runs"][0]["id"]
    assert {fork, *finished} <= {entry.id for entry in Store(url).list()}
