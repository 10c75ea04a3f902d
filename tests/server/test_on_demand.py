"""Several models on one server: loaded when they are named, within a budget, and never unloaded while they
compute; and other names for models."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import httpx2 as httpx
import pytest
from openai import NotFoundError, OpenAI
from waiting import wait_until

from glassloop import LLM, GlassloopError, Sampling
from glassloop.cli.serve.start import name_models
from glassloop.server import on_demand
from glassloop.server.on_demand import Asleep, ModelPlan, OnDemandModels
from glassloop.server.operation.logs import Log
from glassloop.server.operation.settings import ServerSettings
from glassloop.server.service import Service
from server.conftest import MODEL, serving

OTHER = "gemma-3-270m"
ONE_FITS = ("--memory", "500MB", "--kv-memory", "200MB")  # either of the two, and not both


def states(client: OpenAI) -> dict[str, str]:
    return {each.id: each.state for each in client.models.list()}


def events(server) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in server.log if '"model", "model"' in line]
    return [(line["model"], line["state"]) for line in lines]


def test_two_real_models_take_turns_in_the_memory_of_one():
    names = ("--served-model-name", "gpt-4o", "--served-model-name", f"small={OTHER}")
    with (
        serving("--also", OTHER, *ONE_FITS, *names) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client,
    ):
        assert states(client) == {MODEL: "loaded", "gpt-4o": "loaded", OTHER: "unloaded", "small": "unloaded"}
        asked = {"prompt": "The sea is", "max_tokens": 8, "temperature": 0}
        alone = {}
        for name in (MODEL, OTHER):
            with LLM(name, kv_memory="200MB") as llm:
                alone[name] = llm.generate("The sea is", Sampling(max_tokens=8, temperature=0)).text
        for name, model in (("gpt-4o", MODEL), ("small", OTHER), (MODEL, MODEL), (OTHER, OTHER), ("", MODEL)):
            answer = client.completions.create(model=name, **asked)
            assert (answer.model, answer.choices[0].text) == (model, alone[model])
            assert states(client)[model] == "loaded" and list(states(client).values()).count("loaded") == 2
        # Ollama's lists have all of them too, and its requests name one.
        listed = server.get("/api/tags").json()["models"]
        assert [each["name"] for each in listed] == [MODEL, "gpt-4o", OTHER, "small"]
        assert [each["name"] for each in server.get("/api/ps").json()["models"]] == [MODEL]
        said = {"prompt": "The sea is", "raw": True, "stream": False}
        said |= {"model": "small:latest", "options": {"num_predict": 8, "temperature": 0}}
        assert server.post("/api/generate", said).json()["response"] == alone[OTHER]
        # Requests of both at once wait for their turn, and all get the answer that they get alone.
        with ThreadPoolExecutor(8) as threads:
            both = [MODEL, OTHER] * 4
            answers = list(threads.map(lambda name: client.completions.create(model=name, **asked), both))
        assert [answer.choices[0].text for answer in answers] == [alone[name] for name in both]
        # A model that computes stays until it has ended.
        long = {"prompt": "Once", "max_tokens": 60, "extra_body": {"ignore_eos": True}, "seed": 1}
        stream = client.completions.create(model=MODEL, stream=True, **long)
        first = next(stream)
        waiting = threading.Thread(target=lambda: client.completions.create(model=OTHER, **asked))
        waiting.start()
        pieces = [first.choices[0].text, *(part.choices[0].text for part in stream)]
        waiting.join()
        assert "".join(pieces) == client.completions.create(model=MODEL, **long).choices[0].text
        # A run is explained after its model was unloaded and loaded again.
        client.completions.create(model=OTHER, **asked)
        run = server.post("/v1/completions", {"model": MODEL, **asked}).headers["x-glassloop-run"]
        client.completions.create(model=OTHER, **asked)
        assert server.get(f"/api/runs/{run}/explain/0").json()["same"] is True
        # A name that is not known is told with all that are, and loads nothing.
        client.completions.create(model=OTHER, **asked)
        with pytest.raises(NotFoundError, match=f"'{MODEL}', 'gpt-4o', '{OTHER}', 'small'"):
            client.completions.create(model="gpt-5", **asked)
        # Probes and lists load nothing either.
        assert server.get("/health").status_code == server.get("/ready").status_code == 200
        assert "glassloop_http_requests_total" in server.get("/metrics").text
        assert client.models.retrieve("small").root == OTHER
        assert client.models.retrieve("gpt-4o").state == "unloaded"
        assert states(client)[MODEL] == "unloaded"
        assert server.end() == 0
    took_turns = events(server)
    assert took_turns[:4] == [(MODEL, "unloaded"), (OTHER, "loaded"), (OTHER, "unloaded"), (MODEL, "loaded")]


def test_a_model_that_can_never_fit_is_refused_at_the_start(tiny_path):
    named = name_models(
        ServerSettings(str(tiny_path)), [str(tiny_path), MODEL], [f"a={MODEL}", "b", "c=tiny"]
    )
    assert [each.names for each in named] == [("tiny", "b", "c"), (MODEL, "a")]
    for aliases, said in (
        (["x=nothing"], "NAME or NAME=MODEL is expected, where MODEL is one of tiny"),
        ([MODEL], "two models are called"),
        (["a b"], "letters, digits"),
        ([""], "letters, digits"),
    ):
        with pytest.raises(GlassloopError, match=said):
            name_models(ServerSettings(str(tiny_path)), [str(tiny_path), MODEL], aliases)


def test_no_model_is_loaded_for_a_stranger(tiny_path, tmp_path):
    other = tmp_path / "other.gguf"
    shutil.copy(tiny_path, other)
    flags = ("--model", str(tiny_path), "--also", str(other), "--api-key", "long-enough")
    with serving(*flags, "--kv-memory", "20MB") as server:
        key = {"authorization": "Bearer long-enough"}
        body = {"model": "other", "prompt": "x", "max_tokens": 1}
        assert server.post("/v1/completions", body).status_code == 401
        for path in ("/models/other/", "/models/other/health", "/models/other/api/runs", "/v1/models/other"):
            assert server.get(path).status_code in (200, 401)
        listed = server.get("/v1/models", headers=key).json()["data"]
        assert [each["state"] for each in listed] == ["loaded", "unloaded"]
        assert server.post("/v1/completions", body, headers=key).status_code == 200
        listed = server.get("/v1/models", headers=key).json()["data"]
        assert [each["state"] for each in listed] == ["loaded", "loaded"]


class Pool:
    """Models of one tiny file behind `OnDemandModels`, of which one fits at a time."""

    def __init__(self, path, names: str, wrong: bool = False, unload_after: float = 0.0) -> None:
        self.engines: list[weakref.ref[LLM]] = []
        self.wrong = wrong
        first = self.load(path)
        services = [
            Service(
                first if place == 0 else Asleep.as_engine(name, first.config), ServerSettings(name), Log()
            )
            for place, name in enumerate(names)
        ]
        plans = [ModelPlan(first.config, 10, lambda: self.load(path)) for _ in names]
        self.app = OnDemandModels(services, plans, 15, unload_after)
        self.services = services

    def load(self, path) -> LLM:
        if self.wrong and self.engines:
            raise GlassloopError("the disk is gone")
        llm = LLM(path, kv_memory="20MB")
        self.engines.append(weakref.ref(llm))
        return llm

    def ask(self, *bodies: dict) -> list[httpx.Response]:
        async def ask() -> list[httpx.Response]:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))

        return asyncio.run(ask())

    def close(self) -> None:
        for service in self.services:
            service.pools.close()
            service.llm.close()
            service.log.close()


def test_the_one_that_was_not_used_for_longest_goes_and_its_memory_with_it(tiny_path):
    pool = Pool(tiny_path, "abc")
    try:
        bodies = [{"model": name, "prompt": "x", "max_tokens": 2, "seed": 1} for name in "abcabc"]
        answers = pool.ask(*bodies)
        assert [answer.status_code for answer in answers] == [200] * 6
        assert len({answer.json()["choices"][0]["text"] for answer in answers}) == 1
        assert len(pool.engines) >= 3  # the runs are still in memory, and the models are not
        wait_until(lambda: sum(engine() is not None for engine in pool.engines) == 1)
        assert all(service.runs.states for service in pool.services)
    finally:
        pool.close()


def test_a_model_that_nobody_asks_for_is_unloaded_and_comes_back(tiny_path):
    pool = Pool(tiny_path, "a", unload_after=0.05)
    (service,) = pool.services
    body = {"model": "a", "prompt": "x", "max_tokens": 2, "seed": 1}

    async def twice() -> list[str]:
        transport = httpx.ASGITransport(pool.app)
        texts = []
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for _ in range(2):
                answer = await client.post("/v1/completions", json=body)
                texts.append(answer.json()["choices"][0]["text"])
                while service.state != "unloaded":
                    await asyncio.sleep(0.01)
        return texts

    try:
        first, second = asyncio.run(asyncio.wait_for(twice(), 60))
        assert first == second and len(pool.engines) == 2
    finally:
        pool.close()


def test_a_model_that_finds_no_room_is_503_with_a_time_to_come_again(tiny_path, monkeypatch):
    monkeypatch.setattr(on_demand, "_PATIENCE", 0.0)
    pool = Pool(tiny_path, "ab")
    try:
        busy = {"model": "a", "prompt": "x", "max_tokens": 60, "ignore_eos": True}
        first, second = pool.ask(busy, {"model": "b", "prompt": "x", "max_tokens": 1})
        assert first.status_code == 200 and second.status_code == 503
        assert second.headers["retry-after"] == "5" and second.json()["error"]["code"] == "model_not_loaded"
    finally:
        pool.close()


def test_a_model_that_cannot_be_loaded_is_503_and_the_others_go_on(tiny_path):
    pool = Pool(tiny_path, "ab", wrong=True)
    try:
        (refused,) = pool.ask({"model": "b", "prompt": "x", "max_tokens": 1})
        assert refused.status_code == 503 and "disk" not in refused.text
        assert pool.services[1].llm.statistics() == []
        pool.wrong = False
        assert pool.ask({"model": "a", "prompt": "x", "max_tokens": 1})[0].status_code == 200
    finally:
        pool.close()
