"""The list of runs over HTTP: searched, in pages, brief, and the same from memory and from the store."""

from __future__ import annotations

import pytest

from .conftest import Server, serving
from .test_runs import events, finished, import_, start

TALK = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "Which sea\nis the saltiest?"},
]


def listed(server: Server, **query) -> list[dict]:
    return server.get("/api/runs", params=query).json()["runs"]


def pages(server: Server, limit: int, **query) -> list[list[str]]:
    made, before = [], {}
    while True:
        answer = server.get("/api/runs", params={"limit": limit, **query, **before}).json()
        made.append([run["id"] for run in answer["runs"]])
        if not answer["more"]:
            return made
        before = {"before": made[-1][-1]}


def chat(server: Server, path: str) -> str:
    """Starts a conversation on an endpoint and returns the id of its run."""
    if path == "/api/runs":
        (run,) = server.post(path, {"messages": TALK, "sampling": {"max_tokens": 3}}).json()["runs"]
        finished(server, run["id"])
        return run["id"]
    inputs = {"instructions": TALK[0]["content"], "input": [TALK[1]], "max_output_tokens": 3}
    body = inputs if path == "/v1/responses" else {"messages": TALK, "max_tokens": 3}
    answer = server.post(path, body)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-glassloop-run"]


@pytest.mark.parametrize("path", ["/api/runs", "/v1/chat/completions", "/v1/responses"])
def test_a_chat_stays_a_chat(server, path):
    id = chat(server, path)
    run = server.get(f"/api/runs/{id}").json()
    assert run["messages"] == TALK and run["title"] == "Which sea is the saltiest?"
    fork = server.post(f"/api/runs/{id}/fork", {"at": 1}).json()["runs"][0]
    edit = server.post(f"/api/runs/{id}/edit", {"at": 1, "text": " The Dead Sea"}).json()["runs"][0]
    assert fork["messages"] == edit["messages"] == TALK and edit["title"] == run["title"]
    file = server.get(f"/api/runs/{id}/export").content
    server.delete(f"/api/runs/{id}")
    (back,) = import_(server, file).json()["runs"]
    assert back["messages"] == TALK and back["title"] == run["title"] and back["id"] != id
    assert {each["id"]: each["chat"] for each in listed(server, brief=True)}[back["id"]]


def test_tool_calls_are_recorded_as_they_were_sent(server):
    call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": '{"a": 1}'}}
    talk = [
        {"role": "user", "content": [{"type": "text", "text": "Find it", "cache_control": {}}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "annotations": []},
        {"role": "tool", "tool_call_id": "c", "content": "found"},
    ]
    answer = server.post("/v1/chat/completions", {"messages": talk, "max_tokens": 2, "n": 2})
    for id in answer.headers["x-glassloop-run"].split(", "):
        assert server.get(f"/api/runs/{id}").json()["messages"] == [
            {"role": "user", "content": [{"type": "text", "text": "Find it"}]},
            {"role": "assistant", "tool_calls": [call]},
            talk[2],
        ]


def test_a_brief_list_has_a_line_of_each_run(server):
    (run,) = start(server, prompt="A long\nway " + "on " * 300, sampling={"max_tokens": 3, "seed": 4})
    whole = finished(server, run["id"])
    entry = next(each for each in listed(server, brief=True) if each["id"] == run["id"])
    assert entry == {
        **{name: whole[name] for name in ("id", "tree", "model", "name", "created", "status", "seed")},
        **{name: whole[name] for name in ("finish_reason", "text", "parent", "title")},
        "tokens": 3,
        "chat": False,
    }
    assert entry["title"].startswith("A long way on on") and len(entry["title"]) == 120
    (ids,) = start(server, prompt=None, token_ids=[504, 3575, 282], sampling={"max_tokens": 2})
    assert ids["title"] == ids["prompt"] == "The capital of" and ids["messages"] is None


def test_the_list_is_searched_and_paged_in_memory_and_from_the_store(tmp_path):
    flags = ("--store", str(tmp_path / "runs.db"), "--kv-memory", "200MB")
    with serving(*flags) as server:
        runs = [
            start(server, prompt=f"Word {place} of Ωmega", sampling={"max_tokens": 2})[0]["id"]
            for place in range(12)
        ]
        talk = chat(server, "/api/runs")
        for id in runs:
            finished(server, id)
        expected = [talk, *reversed(runs)]
        _check(server, expected)
        assert server.end() == 0
    with serving(*flags) as server:
        _check(server, expected)  # all from the store
        assert server.get(f"/api/runs/{runs[5]}").status_code == 200
        _check(server, expected)  # one of them in memory
        new = start(server, sampling={"max_tokens": 2})[0]["id"]
        assert pages(server, 5) == [
            [new, *expected[:4]],
            expected[4:9],
            expected[9:],
        ]
        assert list(events(server, f"/api/runs/{new}/events"))


def _check(server: Server, expected: list[str]) -> None:
    for brief in (False, True):
        assert [run["id"] for run in listed(server, brief=brief)] == expected
        assert [id for page in pages(server, 4, brief=brief) for id in page] == expected
        found = pages(server, 5, search="of ωMEGA", brief=brief)
        assert [id for page in found for id in page] == expected[1:] and [len(page) for page in found] == [
            5,
            5,
            2,
        ]
        for search in ("SALTIEST", "briefly", expected[0][:9], f" {expected[0]} "):
            assert [run["id"] for run in listed(server, search=search, brief=brief)] == expected[:1]
        assert listed(server, search="nothing like it", brief=brief) == []
    assert all("sampling" not in run for run in listed(server, brief=True))


def test_bad_questions_are_refused(server):
    assert server.get("/api/runs", params={"search": "x" * 201}).status_code == 400
    unknown = server.get("/api/runs", params={"before": "0" * 16})
    assert unknown.status_code == 404 and unknown.json()["error"]["code"] == "no_such_run"
