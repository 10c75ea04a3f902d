"""The id of an answer names its run over HTTP, in the terminal, in Python. A response can be retrieved."""

from __future__ import annotations

import json

import pytest
from cli.terminal import run
from openai import NotFoundError, OpenAI

from glassloop import Store

from .conftest import MODEL, serving
from .test_search import OPTIONS, VOTE

ASKED = [{"role": "user", "content": "Say hi."}]
WEATHER = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]},
}


@pytest.fixture(scope="module")
def answers(server):
    """The ids of answers of every endpoint, each with its run, which is also the id of the request."""
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        made = [
            client.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=4, seed=1),
            client.completions.create(model=MODEL, prompt="The sea is", max_tokens=4, seed=1),
            client.responses.create(model=MODEL, input="Say hi.", max_output_tokens=4),
        ]
    return {answer.id: answer._request_id for answer in made}


def test_every_path_below_a_run_takes_the_id_of_an_answer(server, answers):
    assert [id.rpartition("-")[0] or id[:5] for id in answers] == ["chatcmpl", "cmpl", "resp_"]
    for id, own in answers.items():
        assert server.get(f"/api/runs/{id}").json()["id"] == own
        for path in ("", "/worst", "/explain/1", "/search", "/passes", "/export", "/lens/layers?token=2"):
            one, other = (server.get(f"/api/runs/{name}{path}") for name in (id, own))
            assert one.status_code == other.status_code == 200, one.text
            assert one.content == other.content
        forked = server.post(f"/api/runs/{id}/fork", {"at": 1, "pause_after": 1}).json()["runs"][0]
        assert forked["parent"] == own
        listed = server.get("/api/runs", params={"search": id, "before": forked["id"]}).json()["runs"]
        assert [each["id"] for each in listed] == [own]
        assert server.get("/api/runs", params={"before": id, "limit": 1000}).status_code == 200
    assert server.get("/api/runs/chatcmpl-0000000000000000").status_code == 404
    assert server.get("/api/runs", params={"search": "chatcmpl-"}).json()["runs"] == []


def test_the_stream_of_a_search_names_a_run_that_is_there(client, server):
    chunks = list(client.chat.completions.create(**OPTIONS, stream=True, extra_body={"search": VOTE}))
    (id,) = {chunk.id for chunk in chunks}
    assert server.get(f"/api/runs/{id}/search").json()["search"]["paths"][0]["run"] == id[len("chatcmpl-") :]
    whole = client.chat.completions.create(**OPTIONS, extra_body={"search": VOTE})
    assert server.get(f"/api/runs/{whole.id}").json()["text"] == whole.choices[0].message.content


def test_the_store_and_the_terminal_take_the_id_of_an_answer(tmp_path):
    file = tmp_path / "runs.db"
    with serving("--store", str(file), "--kv-memory", "200MB") as server:
        body = {"messages": ASKED, "max_tokens": 6, "seed": 3}
        id = server.post("/v1/chat/completions", body).json()["id"]
        env = {"GLASSLOOP_STORE": str(file)}
        own = Store(file).get(id).id
        assert id == f"chatcmpl-{own}" and Store(file).run(id).id == own

        def said(*command: str) -> str:
            done = run(*command, **env)
            assert done.returncode == 0, done.stderr
            return done.stdout

        for command in (
            ("explain", "--step", "2"),
            ("runs", "show"),
            ("runs", "worst"),
            ("replay",),
            ("lens", "layers"),
        ):
            assert said(*command, id) == said(*command, own)
        said("runs", "export", id, str(tmp_path / "one.glass"))
        said("fork", id, "--at", "2", "-n", "4")
        assert Store(file).get("last").parent == own
        assert "identical" not in said("diff", id, "last") and id[9:17] in said("diff", id, "last")
        assert own[:8] in said("runs", "list", "--search", id)
        assert f"token 2 of run {own[:8]}" in said(
            *("explain", str(tmp_path / "one.glass"), "--run", id, "--step", "2")
        )
        assert said("runs", "rm", id).startswith("removed 1 run")
        gone = run("explain", id, **env)
        assert gone.returncode == 2 and gone.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "asked",
    [
        {"input": "Say hi.", "instructions": "Be brief.", "temperature": 0.5, "top_p": 0.9},
        {
            "input": "Say hi.",
            "max_output_tokens": 2,
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 20,
        },
        {"input": "Warm in Oslo?", "tools": [WEATHER], "tool_choice": "required", "max_output_tokens": 80},
        {"input": "Age?", "text": {"format": {"type": "json_object"}}, "max_output_tokens": 8},
    ],
)
def test_a_response_is_retrieved_as_it_was_given(client, asked):
    given = client.responses.create(model=MODEL, **{"max_output_tokens": 24, **asked})
    include = {"include": asked["include"]} if "include" in asked else {}
    again = client.responses.retrieve(given.id, **include)
    assert again.model_dump() == given.model_dump()
    if "tools" in asked:
        assert json.loads(again.output[0].arguments) == {"city": "Oslo"}


def test_a_response_that_is_not_there(client, server):
    given = client.responses.create(model=MODEL, input="Say hi.", max_output_tokens=2)
    client.responses.delete(given.id)
    for name in (given.id, "resp_", "resp_" + "0" * 16):
        with pytest.raises(NotFoundError):
            client.responses.retrieve(name or "x")
    long = server.get(f"/v1/responses/{'a' * 65}")
    assert long.status_code == 400 and "id" in long.json()["error"]["message"]
