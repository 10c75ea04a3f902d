"""Runs of keys that are kept apart: what was made without a key or while keys were shared, files, trees,
running runs, shares of what is kept, and servers with several models or replicas. `tests/attacks` walks over
all routes.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import pytest
from hostile.tiny import write_tiny

from glassloop import LLM, Sampling, Store
from glassloop.engine.protocol import Handover
from glassloop.record.format.glass_file import to_bytes
from glassloop.server.many_models import ManyModels
from glassloop.server.operation.logs import Log
from glassloop.server.operation.settings import ServerSettings
from glassloop.server.runs.storage import RunStorage
from glassloop.server.service import Service
from glassloop.server.studio import import_export
from server.in_process import KEYS, Client, place, serving

SECRET = "Zebra 7741 Quartz"


@pytest.fixture(scope="module")
def llm(tmp_path_factory) -> Iterator[LLM]:
    with LLM(str(write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")), kv_memory="32MB") as made:
        made.default_sampling = Sampling()
        yield made


def test_a_file_of_another_client_becomes_the_importers_own_run(llm, tmp_path):
    """It is no copy that the other one could find, change or lose."""
    kind = {"content-type": "application/octet-stream"}
    with place(llm, tmp_path / "runs.db") as made:
        alice, mallory = made.alice, made.mallory
        run = alice.run(SECRET * 3)
        data = alice.http.get(f"/api/runs/{run['id']}/export").content
        assert alice.http.post("/api/runs/import", content=data, headers=kind).status_code == 200
        taken = mallory.http.post("/api/runs/import", content=data, headers=kind)
        assert taken.status_code == 201
        (copy,) = taken.json()["runs"]
        assert copy["id"] != run["id"] and mallory.listed() == [copy["id"]] and alice.listed() == [run["id"]]
        again = mallory.http.post("/api/runs/import", content=data, headers=kind)
        assert again.status_code == 200 and again.json()["runs"][0]["id"] == copy["id"]
        mallory.delete(copy)
        assert alice.ended(run["id"]) == run
        # What was computed for the text stays in the cache of the client that asked for it.
        assert alice.run(SECRET * 3)["usage"]["cached_tokens"] == len(SECRET * 3) - 1


def test_a_file_that_two_clients_import_is_two_runs(llm):
    data = to_bytes([llm.generate(SECRET, Sampling(max_tokens=2, seed=5))])
    kind = {"content-type": "application/octet-stream"}
    with place(llm) as made:
        ids = []
        for client in (made.alice, made.mallory):
            answers = [client.http.post("/api/runs/import", content=data, headers=kind) for _ in range(2)]
            assert [answer.status_code for answer in answers] == [201, 200]
            ids.append(answers[0].json()["runs"][0]["id"])
        assert [made.alice.listed(), made.mallory.listed()] == [[ids[0]], [ids[1]]] and ids[0] != ids[1]


def test_runs_that_take_tokens_back_stay_with_their_key(llm):
    """The run that continues is made on the engine's thread."""
    options = {"revise": 2, "revise_bits": 1.0, "max_tokens": 40, "ignore_eos": True}
    with place(llm) as made:
        tree = made.alice.run(SECRET, **options)["tree"]
        while made.service.llm.statistics()[0].running:
            pass
        assert len(made.alice.listed(tree=tree)) > 1 and made.mallory.listed() == []


def test_a_run_that_another_server_computes_does_not_exist_for_others(llm, tmp_path, monkeypatch):
    monkeypatch.setattr(RunStorage, "_is_running", lambda self, writer: writer == "another")
    path = tmp_path / "runs.db"
    with place(llm, path) as made:
        id = made.alice.run(SECRET)["id"]
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE runs SET writer = 'another', finish_reason = NULL")
    with place(llm, path) as made:
        assert made.alice.http.delete(f"/api/runs/{id}").status_code == 409
        assert made.mallory.http.delete(f"/api/runs/{id}").status_code == 404


def test_forks_in_files_of_others_do_not_change_the_luck_of_a_fork(llm, tmp_path):
    """A file may name any run as its parent."""
    kind, salts = {"content-type": "application/octet-stream"}, []
    for named in (False, True):
        path = tmp_path / f"{named}.db"
        with place(llm, path) as made:
            run = made.alice.run(SECRET)
            source = llm.generate(SECRET, Sampling(max_tokens=4, seed=1))
            for _ in range(3):
                fork = llm.fork(source, 1)
                fork.parent = run["id"] if named else "0" * 16
                answer = made.mallory.http.post("/api/runs/import", content=to_bytes([fork]), headers=kind)
                assert answer.status_code == 201
        with place(llm, path) as made:  # the run is read from the store, and its forks are counted there
            (fork,) = made.alice.ask(f"/api/runs/{run['id']}/fork", {"at": 1})["runs"]
            salts.append(made.alice.ended(fork["id"])["salt"])
    assert salts[0] == salts[1]


def test_runs_of_before_and_of_the_terminal_are_no_keys(llm, tmp_path):
    """They are seen by nobody while keys are kept apart, and by everyone who shares the server else."""
    path = tmp_path / "runs.db"
    terminal = llm.generate(SECRET, Sampling(max_tokens=2, seed=1))
    Store(path).add(terminal)
    with place(llm, path) as apart:
        for client in (apart.alice, apart.mallory):
            assert client.listed() == client.listed(search=SECRET) == client.listed(tree=terminal.id) == []
            assert client.http.get(f"/api/runs/{terminal.id}").status_code == 404
            assert client.http.delete(f"/api/runs/{terminal.id}").status_code == 404
        own = apart.alice.run("mine")
    for settings in ({"separate_keys": False}, {"api_keys": KEYS[1:]}, {"api_keys": ()}):
        with place(llm, path, **settings) as shared:
            client = shared.mallory
            assert set(client.listed()) == {terminal.id, own["id"]}, settings
            assert client.http.get(f"/api/runs/{terminal.id}").status_code == 200
    with place(llm, path, api_keys=KEYS[1:], separate_keys=True) as apart:
        assert apart.mallory.listed() == []  # though it is the only key of this server
    assert {entry.id for entry in Store(path).list()} == {terminal.id, own["id"]}


def test_a_key_keeps_its_runs_when_it_is_no_longer_the_only_one(llm, tmp_path):
    path = tmp_path / "runs.db"
    with place(llm, path, api_keys=KEYS[:1]) as alone:
        run = alone.alice.run(SECRET)
    with place(llm, path) as apart:
        assert apart.alice.listed() == [run["id"]] and apart.mallory.listed() == []
    with sqlite3.connect(path) as connection:
        owners = [owner for (owner,) in connection.execute("SELECT owner FROM runs")]
    assert len(owners) == 1 and not any(key in owners[0] for key in KEYS)


@pytest.mark.parametrize("how", ["in memory", "in the store"])
def test_of_a_tree_that_several_have_made_each_sees_its_own_part(llm, tmp_path, how):
    """Two clients that shared a server are kept apart when it starts again."""
    path = tmp_path / "runs.db"
    with place(llm, path, separate_keys=False) as shared:
        run = shared.alice.run(SECRET)
        (fork,) = shared.mallory.ask(f"/api/runs/{run['id']}/fork", {"at": 1})["runs"]
        assert shared.mallory.ended(fork["id"])["tree"] == run["tree"]
    with place(llm, path) as apart:
        for client, own, other in ((apart.alice, run, fork), (apart.mallory, fork, run)):
            if how == "in memory":
                assert client.http.get(f"/api/runs/{own['id']}").status_code == 200
            events = client.http.get(f"/api/trees/{run['tree']}/events?close=true")
            assert events.status_code == 200 and client.listed(tree=run["tree"]) == [own["id"]]
            assert client.http.get(f"/api/runs/{other['id']}").status_code == 404
        (more,) = apart.alice.ask(f"/api/runs/{run['id']}/fork", {"at": 1})["runs"]
        apart.alice.ended(more["id"])
        told = apart.mallory.http.get(f"/api/trees/{run['tree']}/events?close=true").text
        assert more["id"] not in told and more["id"] not in apart.mallory.listed()


def test_a_run_that_is_computed_does_not_exist_for_others(llm):
    long = {"prompt": SECRET, "sampling": {"max_tokens": 400, "ignore_eos": True, "seed": 1, "n": 64}}
    with place(llm) as made:
        runs = made.alice.ask("/api/runs", long)["runs"]
        id = runs[-1]["id"]
        for method, path in (("DELETE", ""), ("POST", "/stop"), ("GET", "/events"), ("GET", "/export")):
            answer = made.mallory.http.request(method, f"/api/runs/{id}{path}", timeout=30)
            assert answer.status_code == 404 and answer.json()["error"]["code"] == "no_such_run"
        assert made.alice.http.delete(f"/api/runs/{id}").status_code == 409  # it is still computed
        assert made.alice.ended(id)["finish_reason"] == "length"


@pytest.mark.parametrize("how", ["in memory", "in the store"])
def test_nobody_pushes_out_the_runs_of_another_key(llm, tmp_path, how):
    """Of --keep 8 each of two keys has four, however many one of them makes."""
    with place(llm, tmp_path / "runs.db" if how == "in the store" else None, keep=8) as made:
        own = [made.alice.run(f"{SECRET} {number}")["id"] for number in range(5)]
        flood = [made.mallory.run("x" * number, max_tokens=1)["id"] for number in range(1, 70)]
        if how == "in the store":
            made.service.runs.storage._prune()
            made.service.runs.storage._store.flush()
            assert {entry.id for entry in Store(tmp_path / "runs.db").list()} == {*own[1:], *flood[-4:]}
        assert made.alice.listed() == own[:0:-1]
        assert set(made.mallory.listed()) == set(flood[-4:])


def test_nobody_pushes_out_the_imported_runs_of_another_key(llm, monkeypatch):
    monkeypatch.setattr(import_export, "_MOST_MEMORY", 60_000)  # five or six of these
    kind = {"content-type": "application/octet-stream"}

    def take(client: Client, seed: int) -> str:
        data = to_bytes([llm.generate("x", Sampling(max_tokens=1, seed=seed))])
        return client.http.post("/api/runs/import", content=data, headers=kind).json()["runs"][0]["id"]

    with place(llm) as made:
        own = [take(made.alice, seed) for seed in range(2)]
        flood = [take(made.mallory, seed) for seed in range(2, 20)]
        assert made.alice.listed() == own[::-1]
        assert 2 <= len(made.mallory.listed()) <= 4 and made.mallory.listed()[0] == flood[-1]


def test_handovers_of_a_cluster_are_told_to_the_key_whose_run_it_was(llm, monkeypatch):
    with place(llm) as made:
        run = made.alice.run("x")
        owner = made.service.runs.states[0].owner
        moved = Handover(1.0, run["id"], 3, "one", "two", "died", 0.1, owner)
        monkeypatch.setattr(llm, "handovers", lambda: [moved])
        (told,) = made.alice.http.get("/api/cluster").json()["handovers"]
        assert told["run"] == run["id"] and "owner" not in told
        assert made.mallory.http.get("/api/cluster").json()["handovers"] == []


def test_with_several_models_a_path_names_only_ones_own_runs(llm, tmp_path):
    settings = ServerSettings("first", api_keys=KEYS)
    services = [Service(llm, replace(settings, model=name), Log()) for name in ("first", "second")]
    with serving(ManyModels(services)) as url:
        alice, mallory = (Client(url, key) for key in KEYS)
        answer = alice.http.post(
            "/v1/completions", json={"model": "second", "prompt": SECRET, "max_tokens": 2}
        )
        id = answer.headers["x-glassloop-run"]
        assert alice.http.get(f"/api/runs/{id}").json()["prompt"] == SECRET
        for path in (f"/api/runs/{id}", f"/models/second/api/runs/{id}", f"/models/first/api/runs/{id}"):
            told, never = mallory.http.get(path), mallory.http.get(path.replace(id, id[::-1]))
            assert told.status_code == 404 and told.text.replace(id, id[::-1]) == never.text
        assert mallory.http.get("/models/second/api/runs").json()["runs"] == []
    for service in services:
        service.pools.close()


@pytest.mark.parametrize("kind", ["embeddings", "grammars"])
def test_long_work_of_one_key_leaves_threads_and_places_for_another(llm, monkeypatch, kind):
    goes_on, embed, compile_ = threading.Event(), llm.embed, llm.compile

    def slow_embed(ids: Any, **options: Any) -> Any:
        assert len(ids) < 10 or goes_on.wait(60)
        return embed(ids, **options)

    def slow_compile(sampling: Sampling) -> Any:
        assert len(sampling.regex or "") < 10 or goes_on.wait(60)
        return compile_(sampling)

    monkeypatch.setattr(llm, "embed", slow_embed)
    monkeypatch.setattr(llm, "compile", slow_compile)

    def ask(client: Client, text: str) -> int:
        path, body = "/v1/embeddings", {"input": text}
        if kind == "grammars":
            path, body = "/v1/completions", {"prompt": "x", "regex": text, "max_tokens": 1}
        return client.http.post(path, json=body).status_code

    with place(llm) as made, ThreadPoolExecutor(90) as threads:
        flood = [threads.submit(ask, made.mallory, "x" * 20) for _ in range(90)]
        wait(flood, return_when=FIRST_COMPLETED)  # one of them was refused: the others have all they can get
        assert ask(made.alice, "abc") == 200
        goes_on.set()
        counts = Counter(each.result() for each in flood)
    assert set(counts) == {200, 429} and counts[200] == {"embeddings": 72, "grammars": 34}[kind]
