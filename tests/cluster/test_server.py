"""The server with replicas as its engine answers as with one in its process, and tells how they are."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import httpx2 as httpx
import pytest
import uvicorn
from attacks.two_keys import Things, seen, walk
from cluster.local import LocalTransport
from hostile.tiny import write_tiny
from server.in_process import KEYS, Place, serving
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp
from waiting import wait_until

from glassloop import LLM, Sampling
from glassloop.cluster.cluster_model import ClusterModel
from glassloop.record.format.glass_file import from_bytes
from glassloop.server.app import make_app
from glassloop.server.http.clients import client_of, remember_key
from glassloop.server.many_models import ManyModels
from glassloop.server.operation.logs import Log
from glassloop.server.operation.settings import ServerSettings
from glassloop.server.service import Service

PROMPT = "the cat sat on the mat and looked at the moon for a very long time"


@contextlib.contextmanager
def listening(app: ASGIApp) -> Iterator[httpx.Client]:
    """Serves an application on a thread."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        yield client
    server.should_exit = True
    thread.join(120)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny(path)
    return str(path)


class Site:
    """A server with two replicas in this process."""

    def __init__(
        self,
        model: str,
        name: str | None = None,
        api_keys: tuple[str, ...] = (),
        allow_origins: tuple[str, ...] = (),
        **replica: object,
    ) -> None:
        self.transport = LocalTransport(model, **replica)
        engine = ClusterModel(self.transport, self.transport.board, model, patience=1.0, stall=5.0)
        engine.default_sampling = Sampling()
        engine.wait(2)
        settings = ServerSettings(name or model, api_keys=api_keys, allow_origins=allow_origins)
        self.service = Service(engine, settings, Log())

    def close(self) -> None:
        self.service.llm.close()
        self.service.pools.close()
        for replica in self.transport.replicas.values():
            replica.close()


@pytest.fixture
def site(model) -> Iterator[Site]:
    made = Site(model)
    yield made
    made.close()


def test_answers_are_those_of_an_engine_in_the_process(site, model):
    body = {
        "prompt": PROMPT,
        "max_tokens": 30,
        "seed": 5,
        "temperature": 1.1,
        "logprobs": 3,
        "ignore_eos": True,
    }
    with LLM(model, kv_memory="8MB") as single, listening(make_app(site.service)) as client:
        expected = single.generate(PROMPT, seed=5, max_tokens=30, temperature=1.1, ignore_eos=True)
        answer = client.post("/v1/completions", json=body).json()
        assert answer["choices"][0]["text"] == expected.text
        made = client.post("/api/runs", json={"prompt": PROMPT, "sampling": {"seed": 5, "max_tokens": 30}})
        run = made.json()["runs"][0]
        client.get(f"/api/trees/{run['tree']}/events?close=true")
        exported = from_bytes(client.get(f"/api/runs/{run['id']}/export").content)[0]
        assert exported.tokens == single.generate(PROMPT, Sampling(seed=5, max_tokens=30)).tokens
        assert client.get(f"/api/runs/{run['id']}/explain/2").status_code == 200
        for lens in ("attention", "layers", "neighbours"):
            assert client.get(f"/api/runs/{run['id']}/lens/{lens}").status_code == 200
        assert client.post("/v1/embeddings", json={"input": PROMPT}).status_code == 200
        assert client.get(f"/api/runs/{run['id']}/explain/999").status_code == 400


def test_a_run_pauses_at_its_limit_and_goes_on(site, model):
    sampling = {"seed": 5, "max_tokens": 30, "ignore_eos": True}
    with LLM(model, kv_memory="8MB") as single, listening(make_app(site.service)) as client:
        made = client.post("/api/runs", json={"prompt": PROMPT, "sampling": sampling, "pause_after": 4})
        run = made.json()["runs"][0]
        assert len(finished(client, run)["tokens"]) == 4
        client.post(f"/api/runs/{run['id']}/step", json={"tokens": 3})
        assert len(finished(client, run)["tokens"]) == 7
        client.post(f"/api/runs/{run['id']}/step", json={"tokens": None})
        expected = single.generate(PROMPT, Sampling(**sampling))
        assert [token["id"] for token in finished(client, run)["tokens"]] == expected.token_ids


def test_each_sample_pauses_stops_and_goes_on_by_itself(site, model):
    sampling = {"seed": 5, "max_tokens": 150, "ignore_eos": True, "n": 3}
    with LLM(model, kv_memory="8MB") as single, listening(make_app(site.service)) as client:
        expected = single.generate(PROMPT, Sampling(**sampling)).samples
        body = {"prompt": PROMPT, "sampling": sampling}
        paused = client.post("/api/runs", json={**body, "pause_after": 4}).json()["runs"]
        assert [len(finished(client, run)["tokens"]) for run in paused] == [4, 4, 4]
        runs = client.post("/api/runs", json=body).json()["runs"]
        client.post(f"/api/runs/{runs[0]['id']}/stop")
        for run in (runs[0], paused[1]):
            client.post(f"/api/runs/{run['id']}/step", json={"tokens": None})
        for run, whole in zip((*runs, paused[1]), (*expected, expected[1]), strict=True):
            assert [token["id"] for token in finished(client, run)["tokens"]] == whole.token_ids
        assert not list(site.service.llm.engine._streams.requests)


def test_a_deleted_run_is_gone_from_every_replica(site):
    with listening(make_app(site.service)) as client:
        site.transport.by_turns = True
        for options in ({}, {"n": 2}, {"revise": 2, "revise_bits": 0.5, "revise_window": 4}):
            sampling = {"seed": 5, "max_tokens": 40, "ignore_eos": True, **options}
            for _ in range(2):  # one for each replica
                begun = client.post("/api/runs", json={"prompt": PROMPT, "sampling": sampling}).json()
                for run in begun["runs"]:
                    finished(client, run)
            loops = [replica.llm.engine.loop for replica in site.transport.replicas.values()]
            wait_until(lambda loops=loops: not any(loop.busy for loop in loops), 60)
            assert all(loop.tree.node_count and _remembered(loop) for loop in loops)
            for run in client.get("/api/runs").json()["runs"]:
                finished(client, run)
                assert client.delete(f"/api/runs/{run['id']}").status_code == 204
            assert not any(loop.tree.node_count or _remembered(loop) for loop in loops)


def _remembered(loop) -> list[str]:
    """Returns the ids of the runs that drafts are made from."""
    return [id for recent in loop.drafts.recent_runs._owners.values() for id in recent._pieces]


def _client(key: str) -> str:
    scope = {"type": "http"}
    remember_key(scope, key.encode())
    return client_of(HTTPConnection(scope))


def test_keys_are_kept_apart_behind_replicas(model):
    """No route tells anything of another key, and a deletion leaves what replicas have cached for others."""
    site = Site(model, api_keys=KEYS)
    try:
        app = make_app(site.service)
        with serving(app) as url, LLM(model, kv_memory="8MB") as llm:
            place = Place(site.service, app, url)
            things = Things(place.alice, llm)
            assert walk(place, things, lambda: seen(place.alice, things)) > 300
            site.transport.by_turns = True
            texts = [client.run(PROMPT * 3) for client in (place.alice, place.mallory) for _ in range(2)]
            for run in texts[2:]:
                place.mallory.delete(run)
            for _ in range(2):  # one for each replica
                assert place.alice.run(PROMPT * 3)["usage"]["cached_tokens"] > 0
    finally:
        site.close()


def test_replicas_know_the_owner_of_a_request(model):
    site, letters = Site(model, api_keys=("one", "two")), {"allowed_token_ids": [97, 98, 99]}
    try:
        with listening(make_app(site.service)) as client:
            for key in ("one", "two"):
                headers = {"Authorization": f"Bearer {key}"}
                hole = {"before": PROMPT, "after": " and", "tokens": 2, "candidates": 2, "sampling": letters}
                for path, body in (
                    ("/v1/completions", {"prompt": PROMPT, "max_tokens": 4}),
                    ("/api/edits/infill", hole),
                ):
                    answer = client.post(path, json=body, headers=headers)
                    assert answer.status_code < 300, answer.text
            loops = [each.llm.engine.loop for each in site.transport.replicas.values()]
            owners = {owner for loop in loops for owner in loop.drafts.recent_runs._owners}
            assert owners == {_client(key) for key in ("one", "two")}
    finally:
        site.close()


def finished(client: httpx.Client, run: dict) -> dict:
    """Returns a run once it is not computed any more."""
    while True:
        found = client.get(f"/api/runs/{run['id']}").json()
        if found["status"] not in ("waiting", "running"):
            return client.get(f"/api/runs/{run['id']}").json()  # the first may have been read too early
        time.sleep(0.02)


def test_the_state_of_the_replicas_can_be_seen(site):
    with listening(make_app(site.service)) as client:
        client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 4})
        replicas = client.get("/api/replicas").json()
        assert [each["id"] for each in replicas] == ["a", "b"]
        assert all("/" not in each["model"] for each in replicas)
        metrics = client.get("/metrics").text
        assert 'glassloop_kv_pages{replica="a"}' in metrics
        assert 'glassloop_engine_steps_total{replica="b"}' in metrics
        assert client.get("/health").json()["status"] == "ok"
        site.transport.kill("a")
        wait_until(lambda: client.get("/health").json()["status"] == "degraded")
        assert client.get("/ready").status_code == 200
        site.transport.kill("b")
        wait_until(lambda: client.get("/ready").status_code == 503)
        assert client.get("/health").status_code == 503
        answer = client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 4})
        assert answer.status_code == 503
        assert "no replica" in answer.json()["error"]["message"]
        site.transport.add("c")
        wait_until(lambda: client.get("/ready").status_code == 200)
        assert client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 4}).status_code == 200


def test_several_models_are_behind_one_address(model):
    one, two = Site(model, "one"), Site(model, "two")
    try:
        with listening(ManyModels([one.service, two.service])) as client:
            listed = client.get("/v1/models").json()["data"]
            assert [each["id"] for each in listed] == ["one", "two"]
            for name in ("one", "two"):
                body = {"model": name, "prompt": PROMPT, "max_tokens": 3}
                assert client.post("/v1/completions", json=body).json()["model"] == name
                assert client.get(f"/models/{name}/health").json()["model"] == name
            body = {"prompt": PROMPT, "sampling": {"max_tokens": 3}}
            run = client.post("/models/two/api/runs", json=body).json()["runs"][0]
            assert finished(client, run)["id"] == run["id"]  # found by its id alone
            wrong = client.post("/v1/completions", json={"model": "three", "prompt": "x"})
            assert wrong.status_code == 404
            assert client.post("/v1/completions", content=b"{", headers=JSON).status_code in (400, 422)
            assert client.get("/v1/models/two").json()["id"] == "two"
    finally:
        one.close()
        two.close()


def test_the_list_of_several_models_has_the_headers_of_any_answer(model):
    origin = {"origin": "https://app.example"}
    one, two = (Site(model, name, allow_origins=("https://app.example",)) for name in ("one", "two"))
    try:
        with listening(ManyModels([one.service, two.service])) as client:
            listed, other = (client.get(path, headers=origin) for path in ("/v1/models", "/v1/models/two"))
            assert [each["id"] for each in listed.json()["data"]] == ["one", "two"]
            assert listed.headers["access-control-allow-origin"] == "https://app.example"
            assert set(other.headers) <= set(listed.headers)
            assert int(listed.headers["content-length"]) == len(listed.content)
    finally:
        one.close()
        two.close()


def test_the_model_of_a_body_is_found_within_the_limits_of_the_server(model):
    one, two = Site(model, "one", ("key",)), Site(model, "two", ("key",))
    headers = {**JSON, "authorization": "Bearer key"}
    try:
        with listening(ManyModels([one.service, two.service])) as client:
            long = b'{"model": "two", "prompt": "x", "max_tokens": 2' + b" " * 100_000 + b"}"
            answer = client.post("/v1/completions", content=long, headers=headers)
            assert answer.json()["model"] == "two"
            nested = b'{"model": "two", "prompt": ' + b"[" * 200_000 + b"}"
            answer = client.post("/v1/completions", content=nested, headers=headers)
            assert answer.status_code == 400 and answer.json()["error"]["code"] == "body_too_large"
            large = b'{"model": "two"}' + b" " * one.service.settings.most_body
            chunks = (large[place : place + 65_536] for place in range(0, len(large), 65_536))
            assert client.post("/v1/completions", content=chunks, headers=headers).status_code == 413
            with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
                connection.sendall(
                    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n"
                )
                assert b" 401 " in connection.recv(100)  # the body is not waited for
    finally:
        one.close()
        two.close()


JSON = {"content-type": "application/json"}
