"""What a server with a store leaves behind, even when it is killed in the middle; and what it says when the
store cannot do what it should."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import httpx2 as httpx
import pytest
from waiting import wait_until

from glassloop import Store

from .conftest import serving


def test_runs_outlive_a_server_that_is_killed(tmp_path):
    flags = ("--store", str(tmp_path / "runs.db"), "--kv-memory", "200MB")
    body = {"prompt": "Once", "max_tokens": 3000, "ignore_eos": True, "stream": True}
    with serving(*flags) as server, httpx.Client(base_url=server.url, timeout=120) as client:
        done = server.post("/v1/completions", {"prompt": "The sea", "max_tokens": 4, "seed": 1})
        finished = done.headers["x-glassloop-run"]
        streams = [
            client.send(client.build_request("POST", "/v1/completions", json=body), stream=True)
            for _ in range(20)
        ]
        open_ends = [stream.headers["x-glassloop-run"] for stream in streams]
        server.post("/v1/completions", {"prompt": "Later", "max_tokens": 20})
        server.end(signal.SIGKILL)
    with serving(*flags) as server:
        assert {finished, *open_ends} <= {each["id"] for each in server.get("/api/runs").json()["runs"]}
        run = server.get(f"/api/runs/{finished}").json()
        assert run["status"] == "done" and run["text"] == done.json()["choices"][0]["text"]
        assert server.get(f"/api/runs/{finished}/explain/2").json()["same"]
        for id in open_ends:
            left = server.get(f"/api/runs/{id}").json()
            assert left["status"] == "paused" and "interrupted" in left["stop_reason"]
        stepped = server.post(f"/api/runs/{open_ends[0]}/step", {"tokens": 2})
        assert stepped.status_code == 200
        assert server.end() == 0


def test_what_a_client_has_seen_before_a_kill_is_in_the_store(tmp_path):
    flags = ("--store", str(tmp_path / "runs.db"), "--kv-memory", "200MB")
    body = {"prompt": "Once", "max_tokens": 4000, "ignore_eos": True, "stream": True, "seed": 3}
    with (
        serving(*flags) as server,
        httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=120) as stream,
    ):
        id, seen, kept = stream.headers["x-glassloop-run"], 0, None
        for line in stream.iter_lines():
            seen += line.startswith("data: ")
            if seen % 20 == 0:  # what has been written by now is some of what was sent
                kept = Store(tmp_path / "runs.db").run(id)
            if kept is not None and len(kept.tokens) >= 20:
                break
        server.end(signal.SIGKILL)
    left = Store(tmp_path / "runs.db").get(f"cmpl-{id}")
    assert left.finish_reason is None and len(left.tokens) >= 20
    with serving(*flags) as server:
        shown = server.get(f"/api/runs/{id}").json()
        assert shown["status"] == "paused" and "interrupted" in shown["stop_reason"]
        assert shown["text"] == left.text and server.get(f"/api/runs/{id}/explain/5").json()["same"]
        assert server.get(f"/api/runs/{id}/worst").json()["surprising"]
        # It goes on as if nothing had happened.
        count = len(left.tokens)
        assert server.post(f"/api/runs/{id}/step", {"tokens": 5}).status_code == 200
        wait_until(lambda: len(server.get(f"/api/runs/{id}").json()["tokens"]) == count + 5)
        once = server.post("/v1/completions", {**body, "stream": False, "max_tokens": count + 5}).json()
        assert server.get(f"/api/runs/{id}").json()["text"] == once["choices"][0]["text"]
        assert server.end() == 0


def test_what_a_client_was_told_to_be_finished_is_in_a_shared_store(postgres):
    url = postgres.new_database()
    plain = {"prompt": "The sea", "max_tokens": 4, "seed": 1, "ignore_eos": True}
    hole = {"before": "The sea", "after": " is wide.", "tokens": 2, "candidates": 2}
    search = {"max_tokens": 4, "messages": [{"role": "user", "content": "2 + 2?"}]}
    search["search"] = {"method": "vote", "samples": 2}
    found: dict[str, str | None] = {}
    with serving("--store", url, "--kv-memory", "200MB") as server:
        for path, body in (
            ("/v1/completions", plain),
            ("/v1/completions", plain | {"stream": True}),
            ("/api/edits/infill", hole),
            ("/v1/chat/completions", search),
        ):
            answer = server.post(path, body)
            assert answer.is_success, answer.text
            with contextlib.closing(Store(url)) as kept:  # what another server would find at this moment
                before, found = found, {entry.id: entry.finish_reason for entry in kept.list()}
                assert len(found) > len(before) and None not in found.values(), path


def test_the_list_after_a_restart_is_the_list_before_it(tmp_path):
    flags = ("--store", str(tmp_path / "runs.db"), "--kv-memory", "200MB")
    with serving(*flags) as server:
        body = {"prompt": "Once", "sampling": {"n": 3, "max_tokens": 3, "seed": 1}}
        strategies = [{"name": "greedy", "sampling": {"temperature": 0, "n": 1}}, {"name": "wild"}]
        begun = server.post("/api/runs", {**body, "strategies": strategies}).json()["runs"]
        messages = [{"role": "user", "content": "Hi"}]
        server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 2})
        wait_until(lambda: all(run["status"] == "done" for run in _runs(server)))
        server.post(f"/api/runs/{begun[1]['id']}/fork", {"at": 1})
        wait_until(lambda: len(_runs(server)) == 6 and all(run["status"] == "done" for run in _runs(server)))
        before = _runs(server)
        assert server.end() == 0
    with serving(*flags) as server:
        after = _runs(server)
        plain = [{**run, "created": None} for run in before]  # a fork is listed by when it was asked for
        assert sorted(({**run, "created": None} for run in after), key=_id) == sorted(plain, key=_id)
        tree = begun[0]["tree"]
        assert {run["id"] for run in _runs(server, tree)} == {
            run["id"] for run in before if run["tree"] == tree
        }
        with httpx.stream("GET", f"{server.url}/api/trees/{tree}/events?close=true", timeout=120) as events:
            assert events.status_code == 200
        # One that was looked at is in memory then, and is listed as before.
        whole = server.get(f"/api/runs/{begun[2]['id']}").json()
        assert next(run for run in _runs(server) if run["id"] == whole["id"]).items() <= whole.items()
        assert len(_runs(server)) == 6
        # A fork of a run whose record does not know of its first fork has other luck than that.
        (first,) = [run for run in after if run["parent"] == begun[1]["id"]]
        second = server.post(f"/api/runs/{begun[1]['id']}/fork", {"at": 1}).json()["runs"][0]
        assert second["salt"] != first["salt"]


def _runs(server, tree: str | None = None) -> list[dict]:
    return server.get("/api/runs", params={"limit": 1000} | ({"tree": tree} if tree else {})).json()["runs"]


def _id(run: dict) -> str:
    return run["id"]


def test_a_deleted_run_is_gone_and_stays_gone(tmp_path):
    flags = ("--store", str(tmp_path / "runs.db"), "--kv-memory", "200MB")
    with serving(*flags) as server:
        ids = []
        for _ in range(30):
            answer = server.post("/v1/completions", {"prompt": "The sea", "max_tokens": 2})
            ids.append(answer.headers["x-glassloop-run"])
            assert httpx.delete(f"{server.url}/api/runs/{ids[-1]}").status_code == 204
            assert server.get(f"/api/runs/{ids[-1]}").status_code == 404
        time.sleep(0.5)
        assert _runs(server) == [] and server.end() == 0
    with serving(*flags) as server:
        assert _runs(server) == []
        assert all(server.get(f"/api/runs/{id}").status_code == 404 for id in ids)
        assert httpx.delete(f"{server.url}/api/runs/{ids[0]}").status_code == 404


def test_a_store_that_another_process_locks_is_reported_and_delays_nothing_else(tmp_path):
    path = tmp_path / "runs.db"
    with serving("--store", str(path), "--kv-memory", "200MB") as server:
        done = server.post("/v1/completions", {"prompt": "The sea", "max_tokens": 2})
        id = done.headers["x-glassloop-run"]
        wait_until(lambda: len(_rows(path)) == 1 and _rows(path)[0][1] == "length")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        more = [server.post("/v1/completions", {"prompt": "A", "max_tokens": 2}) for _ in range(60)]
        assert all(answer.status_code == 200 for answer in more)
        refused = httpx.delete(f"{server.url}/api/runs/{id}", timeout=120)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "store_unavailable"
        assert str(tmp_path) not in refused.text and server.get(f"/api/runs/{id}").status_code == 200
        health = server.get("/health")
        assert health.status_code == 200 and health.json()["status"] == "degraded"
        assert "database is locked" in health.json()["reason"] and str(tmp_path) not in health.text
        assert len(_runs(server)) == 61
        metrics = server.get("/metrics").text
        assert "glassloop_store_failed_writes_total 60.0" in metrics
        assert "glassloop_store_lost_runs_total 0.0" in metrics
        lines = [json.loads(line) for line in server.log if '"store"' in line]
        assert {line["run"] for line in lines} == {answer.headers["x-glassloop-run"] for answer in more}
        other.execute("COMMIT")
        wait_until(lambda: server.get("/health").json()["status"] == "ok")
        assert len(_rows(path)) == 61
        assert httpx.delete(f"{server.url}/api/runs/{id}").status_code == 204 and len(_rows(path)) == 60
        assert server.end() == 0


def _rows(path) -> list[tuple[str, str]]:
    with sqlite3.connect(path) as connection:
        return connection.execute("SELECT id, finish_reason FROM runs").fetchall()


def _refused(*flags: str) -> str:
    """What a server that does not start says."""
    command = [sys.executable, "-m", "glassloop", "serve", "--port", "0", "--kv-memory", "100MB", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr.count("\n") == 1 and ended.stderr.startswith("glassloop: "), ended.stderr
    return ended.stderr


@pytest.mark.parametrize("what", ["a folder", "garbage", "newer", "below a file", "full"])
def test_a_store_that_cannot_be_used_is_one_line_at_the_start(tmp_path, what):
    path = tmp_path / "runs.db"
    if what == "a folder":
        path.mkdir()
    elif what == "garbage":
        path.write_bytes(b"no database" * 1000)
    elif what == "newer":
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version = 99")
    elif what == "below a file":
        path.write_text("")
        path = path / "runs.db"
    else:
        path = Path("/dev/full")
    said = _refused("--store", str(path))
    assert ("version 99" if what == "newer" else "cannot use the store") in said
