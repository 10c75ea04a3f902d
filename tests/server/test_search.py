"""A search over HTTP, as a plain `openai` client asks for it."""

from __future__ import annotations

import json

import pytest
from waiting import wait_until

from glassloop import Sampling
from glassloop.search.record import read_record

from .conftest import MODEL

ASKED = [{"role": "user", "content": "What is 3 + 4?"}]
OPTIONS = {"model": MODEL, "messages": ASKED, "seed": 5, "max_tokens": 24, "temperature": 0.8}
VOTE = {"method": "vote", "n": 4, "extract": "number"}


@pytest.fixture(scope="module")
def expected(llm):
    options = Sampling(seed=5, max_tokens=24, temperature=0.8)
    return llm.solve(ASKED, "vote", n=4, extract="number", sampling=options)


def test_a_plain_client_gets_the_answer_of_a_search(client, server, expected):
    found = client.chat.completions.create(**OPTIONS, extra_body={"search": {**VOTE, "paths": True}})
    assert found.choices[0].message.content == expected.text and len(found.choices) == 1
    assert found.usage.completion_tokens == expected.usage.tokens
    assert found.usage.prompt_tokens == expected.usage.prompt_tokens
    search = found.model_extra["search"]
    assert search["votes"] == expected.votes and search["value"] == expected.value
    assert [path["text"] for path in search["paths"]] == [path.text for path in expected.paths]
    mine = [(each["action"], each["path"], each["tokens"]) for each in search["decisions"]]
    assert mine == [(each.action, each.path, each.tokens) for each in expected.decisions]
    kept = server.get(f"/api/runs/{search['id']}/search").json()["search"]
    read_record(kept)
    assert kept["votes"] == expected.votes
    for path in kept["paths"]:
        assert server.get(f"/api/runs/{path['run']}").json()["text"] == expected.paths[path["number"]].text
        assert server.get(f"/api/runs/{path['run']}/search").json() == {"search": kept}
    tree = server.get(f"/api/runs/{search['id']}").json()["tree"]
    assert len(server.get(f"/api/runs?tree={tree}").json()["runs"]) == 4


def test_the_confidence_along_each_path_is_that_of_the_method(client, server):
    options = {"warmup": 3, "wave": 2, "keep": 0.5, "window": 6, "stride": 6}
    search = {"method": "confidence", "n": 7, "extract": "number", "options": options, "paths": True}
    found = client.chat.completions.create(**{**OPTIONS, "seed": 3}, extra_body={"search": search})
    told = found.model_extra["search"]
    answer = server.get(f"/api/runs/{told['id']}/search/confidence?points=1000").json()
    assert answer["window"] == 6 and [each["number"] for each in answer["paths"]] == list(
        range(len(told["paths"]))
    )
    (note,) = [each["why"] for each in told["decisions"] if "threshold of confidence" in each["why"]]
    assert note.endswith(f"{answer['threshold']:.3f}")
    for path, shown in zip(told["paths"], answer["paths"], strict=True):
        assert min(shown["groups"]) == pytest.approx(path["confidence"], abs=1e-12)
        assert shown["tokens"] == sorted(shown["tokens"]) and shown["tokens"][-1] == path["tokens"] - 1
    few = server.get(f"/api/runs/{told['id']}/search/confidence?points=2").json()["paths"]
    assert all(len(each["groups"]) <= 2 for each in few)
    assert [min(each["groups"]) for each in few] == [min(each["groups"]) for each in answer["paths"]]
    plain = server.post("/api/runs", {"prompt": "Hi", "sampling": {"max_tokens": 1}}).json()["runs"][0]
    assert server.get(f"/api/runs/{plain['id']}/search/confidence").json()["paths"] == []


def test_the_paths_are_told_only_if_asked_for(client):
    found = client.chat.completions.create(**OPTIONS, extra_body={"search": VOTE})
    assert "paths" not in found.model_extra["search"]


def test_a_search_is_streamed(client, expected):
    options = {**OPTIONS, "stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(**options, extra_body={"search": VOTE}))
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == expected.text
    told = [chunk.model_extra["search"] for chunk in chunks if "search" in (chunk.model_extra or {})]
    assert told[-1]["value"] == expected.value and told[-1]["votes"] == expected.votes
    assert any("running" in each for each in told[:-1])
    assert chunks[-1].usage.completion_tokens == expected.usage.tokens
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] in ("stop", "length") and not any(reasons[:-1])


def test_a_budget_and_a_verifier(client, llm):
    search = {"method": "best", "n": 6, "verify": "regex:[0-9]", "budget": {"tokens": 60}, "paths": True}
    found = client.chat.completions.create(**OPTIONS, extra_body={"search": search})
    assert found.usage.completion_tokens <= 60
    paths = found.model_extra["search"]["paths"]
    won = paths[found.model_extra["search"]["answer"]]
    assert won["verdict"] is None or won["verdict"]["passed"] == any(map(str.isdigit, won["text"]))


@pytest.mark.parametrize(
    "search, field",
    [
        ({"method": "votes"}, "search.method"),
        ({"n": 0}, "search.n"),
        ({"n": 1000}, "search.n"),
        ({"n": "8"}, "search.n"),
        ({"budget": {"tokens": -1}}, "search.budget.tokens"),
        ({"budget": {"seconds": 0}}, "search.budget.seconds"),
        ({"budget": {"time": 3}}, "search.budget.time"),
        ({"verify": "python:print(1)"}, "search.verify"),
        ({"verify": "tests:/etc/passwd"}, "search.verify"),
        ({"extract": "import os"}, "search.extract"),
        ({"extract": "regex:("}, "search.extract"),
        ({"method": "best"}, "search.verify"),
        ({"options": {"warmup": 3}}, "search.warmup"),
        ({"method": "confidence", "options": {"wave": 900}}, "search.wave"),
        ({"method": "confidence", "options": {"window": -1}}, "search.window"),
        ({"options": {"n": [1]}}, "search.options.n"),
        ({"judge": "x" * 30_000}, "search.judge"),
        ({"what": 1}, "search.what"),
    ],
)
def test_hostile_values_are_refused_by_name(server, search, field):
    refused = server.post("/v1/chat/completions", {**OPTIONS, "search": search})
    assert refused.status_code in (400, 422), refused.text
    assert refused.json()["error"]["param"] == field, refused.text


def test_several_choices_and_a_search_are_at_odds(server):
    for name in ("n", "beam_width", "revise"):  # named as they were sent: they are no fields of `search`
        refused = server.post("/v1/chat/completions", {**OPTIONS, name: 2, "search": VOTE})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == name, refused.text
        assert f"{name} is 2; a search does not take it" in refused.json()["error"]["message"]


def test_a_run_without_a_search_says_so(server, client):
    found = client.chat.completions.create(**{**OPTIONS, "max_tokens": 2})
    told = server.get(f"/api/runs/{found.id.removeprefix('chatcmpl-')}/search")
    assert told.status_code == 200 and told.json() == {"search": None}


def test_a_client_that_leaves_ends_the_search(server):
    import httpx2 as httpx

    body = {**OPTIONS, "max_tokens": 2000, "ignore_eos": True, "stream": True, "search": {**VOTE, "n": 16}}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=120) as stream:
        lines = stream.iter_lines()
        while "search" not in json.loads(next(lines).removeprefix("data: ") or "{}"):
            pass
    names = ("glassloop_requests_running ", "glassloop_kv_pages_held ")

    def load() -> list[float]:
        lines = server.get("/metrics").text.splitlines()
        return [float(line.split()[-1]) for line in lines if line.startswith(names)]

    wait_until(lambda: load() == [0, 0])


@pytest.mark.parametrize("stream", [False, True])
def test_a_search_without_time_for_any_path_is_a_timeout(server, stream):
    search = {**VOTE, "budget": {"seconds": 1e-9}}
    answer = server.post("/v1/chat/completions", {**OPTIONS, "search": search, "stream": stream})
    assert answer.status_code == (200 if stream else 408)
    assert '"code":"timeout"' in answer.text and "the search took longer than" in answer.text
