"""A server with a plugin: its stages in requests, with options, by the example of docs/decoding.md."""

from __future__ import annotations

import json
import re

import pytest
from engine.test_own_stages import BLOCKS, PLUGIN
from waiting import wait_until

from server.conftest import serving

MESSAGES = [{"role": "user", "content": "Tell me about cats."}]
OWN = {"stages": ["default", "new_opening"], "stage_options": {"new_opening": {"length": 2}}}

UNHURRIED = """
import time

@stage("unhurried", kind="mask")
def unhurried(candidates, step):
    time.sleep(0.06)
    return candidates
"""


@pytest.fixture(scope="module")
def with_plugin(tmp_path_factory):
    path = tmp_path_factory.mktemp("plugin") / "my_stages.py"
    path.write_text(PLUGIN + UNHURRIED)
    with serving("--kv-memory", "500MB", "--plugin", str(path)) as started:
        yield started


def test_the_request_of_the_document_runs_the_stage(with_plugin):
    from openai import BadRequestError, OpenAI

    code = next(block for block in BLOCKS if "client.chat" in block).partition("\nclient.")[2]
    with OpenAI(base_url=f"{with_plugin.url}/v1", api_key="none", max_retries=0) as client:
        answer = eval(f"client.{code}", {"client": client})
        assert answer.choices[0].message.content
        with pytest.raises(BadRequestError, match=r"stage_options\.new_opening\.length is '2'; a whole numb"):
            client.chat.completions.create(
                model=answer.model,
                messages=MESSAGES,
                max_tokens=4,
                extra_body={**OWN, "stage_options": {"new_opening": {"length": "2"}}},
            )
    run = with_plugin.get("/api/runs").json()["runs"][0]
    assert run["sampling"]["stages"] == OWN["stages"]
    assert run["sampling"]["stage_options"] == OWN["stage_options"]
    told = with_plugin.get(f"/api/runs/{run['id']}/explain/1").json()
    assert told["stages"][-1]["name"] == "new_opening" and told["notes"] == []
    query = {"stage_options": '{"new_opening": {"length": 1}}'}
    what_if = with_plugin.get(f"/api/runs/{run['id']}/explain/1", params=query)
    assert what_if.json()["sampling"]["stage_options"] == {"new_opening": {"length": 1}}
    query = {"stages": '["default"]'}
    without = with_plugin.get(f"/api/runs/{run['id']}/explain/1", params=query).json()
    assert "new_opening" not in [stage["name"] for stage in without["stages"]]


def test_runs_take_the_same_fields_and_forks_change_them(with_plugin):
    body = {"prompt": "My sister has a cat.", "sampling": {**OWN, "temperature": 0, "max_tokens": 30}}
    made = with_plugin.post("/api/runs", body)
    assert made.status_code == 201, made.text
    id = made.json()["runs"][0]["id"]
    assert with_plugin.get(f"/api/runs/{id}/events").status_code == 200  # to its end
    fork = with_plugin.post(f"/api/runs/{id}/fork", {"at": 3, "sampling": {"stages": ["default"]}}).json()
    assert fork["runs"][0]["sampling"]["stage_options"] == {}
    refused = with_plugin.post(
        "/api/runs", {**body, "sampling": {**OWN, "stages": ["default", "new_openin"]}}
    )
    assert refused.status_code == 400 and "did you mean new_opening?" in refused.json()["error"]["message"]


def test_the_log_names_a_stage_that_exceeds_its_budget(with_plugin):
    body = {"prompt": "A cat", "max_tokens": 3, "stages": ["default", "unhurried"]}
    assert with_plugin.post("/v1/completions", body).status_code == 200
    wait_until(lambda: any("unhurried" in line for line in with_plugin.log))
    (told,) = [json.loads(line) for line in with_plugin.log if "unhurried" in line]
    assert told["event"] == "warning"
    assert re.match(r"stage 'unhurried' took \d+ ms in a step; its budget is 50 ms", told["message"])


def test_the_stages_of_a_plugin_are_listed_by_file_name_alone(with_plugin):
    info = with_plugin.get("/api/info").json()
    assert info["stages"][0] == "logit_bias" and info["stages"][-2] == "new_opening"
    assert info["own_stages"][:1] == [
        {
            "name": "new_opening",
            "kind": "mask",
            "plugin": "my_stages.py",
            "options": [
                {"name": "length", "expected": "a whole number", "required": False, "default": 1},
            ],
        }
    ]


def test_a_server_without_the_plugin_opens_its_run_and_says_what_is_missing(with_plugin, server):
    body = {"prompt": "My sister has a cat.", "sampling": {**OWN, "max_tokens": 5, "ignore_eos": True}}
    id = with_plugin.post("/api/runs", body).json()["runs"][0]["id"]
    with_plugin.get(f"/api/runs/{id}/events")
    file = with_plugin.get(f"/api/runs/{id}/export").content
    import httpx2 as httpx

    kind = {"content-type": "application/octet-stream"}
    taken = httpx.post(f"{server.url}/api/runs/import", content=file, headers=kind, timeout=120)
    assert taken.status_code in (200, 201), taken.text
    run = taken.json()["runs"][0]
    assert run["sampling"]["stages"] == OWN["stages"]
    for answer in (
        server.get(f"/api/runs/{run['id']}/explain/1"),
        server.post(f"/api/runs/{run['id']}/fork", {"at": 1}),
    ):
        assert answer.status_code == 400
        assert "made with plugin my_stages.py (sha256 " in answer.json()["error"]["message"]
    assert server.get("/api/info").json()["own_stages"] == []
    for name in ("plugin", "plugins"):
        refused = server.post("/v1/completions", {"prompt": "Hi", name: "my_stages.py"})
        assert refused.status_code == 400
