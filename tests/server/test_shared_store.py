"""One store for the terminal, Python and several servers: each sees, opens and continues the runs of the
others, and none of them loses one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from copy import copy
from pathlib import Path

import httpx2 as httpx
import pytest
from engine.random_runs import PROMPT, small_llm
from waiting import wait_until

from glassloop import LLM, Sampling, Store
from glassloop.server.runs.storage import RunStorage

from .conftest import Server, serving
from .test_runs import FRANCE, finished, import_, start

MEMORY = ("--kv-memory", "200MB")


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("shared") / "runs.db"


@pytest.fixture(scope="module")
def shared(store) -> Server:
    """A server with the user's own store, as it is by default."""
    with serving(*MEMORY, env={"GLASSLOOP_STORE": str(store)}) as started:
        yield started


def terminal(store: Path, *arguments: str, input: str | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "glassloop", *arguments],
        capture_output=True,
        text=True,
        input=input,
        env=os.environ | {"GLASSLOOP_STORE": str(store)},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_server_opens_explains_forks_and_continues_what_the_terminal_made(shared, store):
    made = json.loads(terminal(store, "generate", FRANCE, "--json", "-n", "4", "--seed", "3"))
    entry = shared.get("/api/runs", params={"brief": True, "search": FRANCE}).json()["runs"][0]
    assert (entry["id"], entry["title"], entry["status"]) == (made["id"], FRANCE, "done")
    run = shared.get(f"/api/runs/{made['id']}").json()
    assert run["text"] == made["text"] and run["model"] == made["model"]
    assert shared.get(f"/api/runs/{made['id']}/explain/2").json()["same"]
    (fork,) = shared.post(f"/api/runs/{made['id']}/fork", {"at": 2, "token": " Lyon"}).json()["runs"]
    assert finished(shared, fork["id"])["parent"] == made["id"] and fork["tree"] == run["tree"]
    # The fork of a terminal's run is a server's; the run itself stays the user's own.
    wait_until(lambda: Store(store).is_from_server(fork["id"]))  # the server's thread writes it soon
    assert not Store(store).is_from_server(made["id"])


def test_the_terminal_explains_replays_and_forks_what_a_server_made(shared, store):
    talk = {"messages": [{"role": "user", "content": "Name a sea."}], "max_tokens": 6}
    id = shared.post("/v1/chat/completions", talk).headers["x-glassloop-run"]
    assert finished(shared, id)["status"] == "done"
    wait_until(lambda: Store(store).run(id) is not None and Store(store).run(id).finish_reason)
    assert "won" in terminal(store, "explain", id, "--step", "1")
    assert "identical" in terminal(store, "replay", id)
    listed = terminal(store, "runs", "list", "--search", "NAME a sea")
    assert id[:8] in listed and "Name a sea." in listed
    shown = terminal(store, "runs", "show", id)
    assert "user: Name a sea." in shown and "assistant: " in shown and "[1, " not in shown
    fork = json.loads(terminal(store, "fork", id, "--at", "1", "--json"))
    assert fork["messages"] == talk["messages"]
    assert shared.get(f"/api/runs/{fork['id']}").json()["title"] == "Name a sea."


def test_python_keeps_runs_where_it_is_asked_to(shared, store, llm, monkeypatch):
    monkeypatch.setenv("GLASSLOOP_STORE", str(store))
    with LLM(kv_memory="100MB", store=True) as own:
        run = own.chat([{"role": "user", "content": "Say hi."}], Sampling(max_tokens=3))
    assert shared.get(f"/api/runs/{run.id}").json()["messages"] == run.messages


def test_a_run_of_another_model_can_be_looked_at(shared, store, tmp_path):
    run = Store(store).get("last")
    run.id, run.model, run.model_hash = "ab" * 8, str(tmp_path / "secret" / "other.gguf"), "0" * 64
    Store(store).add(run)
    summary = shared.get(f"/api/runs/{run.id}").json()
    assert summary["text"] == run.text and summary["model"] == "other"
    for answer in (
        shared.post(f"/api/runs/{run.id}/fork", {"at": 1}),
        shared.get(f"/api/runs/{run.id}/explain/0"),
    ):
        assert answer.status_code == 400 and "another model: other" in answer.json()["error"]["message"]
        assert "secret" not in answer.text
    assert "secret" not in shared.get("/api/runs").text + shared.get(f"/api/runs/{run.id}/export").text
    Store(store).remove(run.id)


def test_a_paused_run_of_the_terminal_is_continued_and_stays_its_own(shared, store, llm):
    asked = llm.prepare(FRANCE, Sampling(max_tokens=20, seed=2, ignore_eos=True))
    for place, _ in enumerate(llm.follow(asked)):
        if place == 4:
            break
    (run,) = asked.runs
    run.model = "/some/where/" + run.model + ".gguf"
    whole = llm.generate(FRANCE, Sampling(max_tokens=20, seed=2, ignore_eos=True))
    Store(store).add(run)
    assert shared.get(f"/api/runs/{run.id}").json()["status"] == "paused"
    assert shared.post(f"/api/runs/{run.id}/step", {"tokens": 100}).status_code == 200
    assert finished(shared, run.id)["text"] == whole.text
    wait_until(lambda: Store(store).run(run.id).finish_reason == "length")
    assert Store(store).run(run.id).model == run.model and not Store(store).is_from_server(run.id)
    Store(store).add(run)  # a program that has not seen the rest
    assert Store(store).run(run.id).text == whole.text


def test_a_run_that_another_server_computes_is_not_interrupted(shared, store):
    with serving(*MEMORY, "--store", str(store)) as other, httpx.Client(timeout=120) as client:
        body = {"prompt": "Once", "max_tokens": 3000, "ignore_eos": True, "stream": True}
        asked = client.build_request("POST", f"{other.url}/v1/completions", json=body)
        stream = client.send(asked, stream=True)
        id = stream.headers["x-glassloop-run"]
        wait_until(lambda: shared.get(f"/api/runs/{id}").status_code == 200)
        for run in (shared.get(f"/api/runs/{id}").json(), _entry(shared, id), _entry(shared, id, brief=True)):
            assert run["status"] == "elsewhere" and run["finish_reason"] is None
        for answer in (
            shared.post(f"/api/runs/{id}/step"),
            shared.delete(f"/api/runs/{id}"),
            shared.get(f"/api/runs/{id}/export"),
        ):
            assert answer.status_code == 409, answer.text
        (short,) = start(other, prompt="Twice", sampling={"max_tokens": 3})
        wait_until(lambda: shared.get(f"/api/runs/{short['id']}").json().get("status") == "done")
        other.end(signal.SIGKILL)
        assert _entry(shared, id, brief=True)["status"] == "paused"
        left = shared.get(f"/api/runs/{id}").json()
        assert left["status"] == "paused" and "interrupted" in left["stop_reason"]
        assert shared.post(f"/api/runs/{id}/step", {"tokens": 2}).status_code == 200


def test_a_run_that_ends_while_another_server_reads_it_has_ended(tmp_path, monkeypatch):
    """Without this, that server would keep it in its memory as interrupted."""
    path = tmp_path / "runs.db"
    run = small_llm().generate(PROMPT, Sampling(max_tokens=3))
    begun = copy(run)
    begun.finish_reason = None
    with closing(Store(path, writer="gone")) as theirs:
        theirs.put(begun)
        theirs.flush()
        reader = RunStorage(path, None, None, lambda *_, **__: None)
        writer_of = reader._store.writer_of

        def after_its_end(id: str) -> str | None:
            theirs.put(run)
            theirs.flush()
            return writer_of(id)

        monkeypatch.setattr(reader._store, "writer_of", after_its_end)
        found = asyncio.run(reader.get(run.id))
        reader.close()
    assert found is not None and found.run.finish_reason == run.finish_reason and not found.is_elsewhere


def _entry(server: Server, id: str, **query) -> dict:
    runs = server.get("/api/runs", params={"search": id, **query}).json()["runs"]
    assert len(runs) == 1
    return runs[0]


def _kept(path, id: str) -> str | None:
    """Returns how the run in a store has ended, "running" if it has not, None if it is not there yet."""
    run = Store(path).run(id)
    return None if run is None else run.finish_reason or "running"


def test_a_continued_run_has_its_tokens_in_the_store_if_the_server_is_killed(tmp_path):
    path = tmp_path / "runs.db"
    with serving(*MEMORY, "--store", str(path)) as server:
        (run,) = start(server, sampling={"max_tokens": 3000, "ignore_eos": True}, pause_after=5)
        wait_until(lambda: server.get(f"/api/runs/{run['id']}").json()["status"] == "paused")
        wait_until(lambda: _kept(path, run["id"]) == "cancelled")  # written by another thread
        server.post(f"/api/runs/{run['id']}/step", {"tokens": 2900})
        wait_until(lambda: _kept(path, run["id"]) == "running")
        server.end(signal.SIGKILL)
    assert len(Store(path).run(run["id"]).tokens) == 5


def test_a_server_is_the_same_after_a_restart_and_prunes_what_it_was_told_to(tmp_path):
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = str(listening.getsockname()[1])
    flags = (*MEMORY, "--store", str(tmp_path / "runs.db"))

    def some(*more: str) -> list[str]:
        with serving(*flags, *more, "--port", port) as server:
            made = [server.post("/v1/completions", {"prompt": "A", "max_tokens": 2}) for _ in range(4)]
            assert server.end() == 0
        return [answer.headers["x-glassloop-run"] for answer in made]

    before, told, again = some(), some("--keep", "3"), some("--keep", "3")
    left = {entry.id for entry in Store(tmp_path / "runs.db").list()}
    assert left == {*before, *again[1:]} and not left & set(told)


def test_a_file_that_is_opened_again_after_a_restart_is_the_run_that_is_here(tmp_path, llm):
    run = llm.generate(FRANCE, Sampling(max_tokens=3))
    run.save(tmp_path / "a.glass")
    file, answers = (tmp_path / "a.glass").read_bytes(), []
    for _ in range(2):
        with serving(*MEMORY, "--store", str(tmp_path / "runs.db")) as server:
            answers += [import_(server, file), import_(server, file)]
            assert server.end() == 0
    assert [answer.status_code for answer in answers] == [201, 200, 200, 200]
    assert len({answer.json()["runs"][0]["id"] for answer in answers} - {run.id}) == 1
    assert len(Store(tmp_path / "runs.db")) == 1


def test_where_runs_are_kept_is_said(shared, store, tmp_path):
    assert shared.first_line.endswith(f"; runs are kept in {store}\n")
    with serving(*MEMORY) as server:
        (run,) = start(server, sampling={"max_tokens": 2})
        finished(server, run["id"])
        assert server.first_line.endswith("; runs are kept in memory only\n")
    unusable = tmp_path / "file"
    unusable.write_text("no store")
    with serving(*MEMORY, env={"GLASSLOOP_STORE": str(unusable)}) as server:
        assert "memory only: cannot use the store" in server.first_line
    with serving(
        *MEMORY, "--host", "0.0.0.0", "--open", env={"GLASSLOOP_STORE": str(tmp_path / "x.db")}
    ) as server:
        assert "memory only, until the server ends: others can reach it" in server.first_line
        assert server.first_line.endswith("name a file: --store FILE\n") and not (tmp_path / "x.db").exists()
