"""Adapters over HTTP: `model: "base:adapter"`."""

from __future__ import annotations

import pytest
from engine.peft_adapter import write_adapter

from server.conftest import MODEL, serving

PROMPT = "The sea was calm, and the old man who lived by the harbour had not"
OPTIONS = {"prompt": PROMPT, "seed": 3, "max_tokens": 6, "temperature": 0.9}


@pytest.fixture(scope="module")
def folder(llm, tmp_path_factory):
    return write_adapter(tmp_path_factory.mktemp("adapters") / "sea", llm.config, 4, "q v down", 1)


@pytest.fixture(scope="module")
def served(folder):
    with serving("--kv-memory", "200MB", "--adapter", f"sea={folder}", "--adapter", f"land={folder}") as made:
        yield made


def test_a_model_with_an_adapter_is_listed_and_answers(served, llm, folder):
    listed = served.get("/v1/models").json()["data"]
    assert [(each["id"], each["parent"]) for each in listed] == [
        (MODEL, None),
        (f"{MODEL}:sea", MODEL),
        (f"{MODEL}:land", MODEL),
    ]
    assert served.get(f"/v1/models/{MODEL}:sea").json() == listed[1]
    llm.load_adapter("sea", folder)
    expected = {
        name: llm.generate(PROMPT, seed=3, max_tokens=6, temperature=0.9, adapter=name)
        for name in (None, "sea")
    }
    assert expected[None].text != expected["sea"].text
    answers = [
        served.post("/v1/completions", {**OPTIONS, "model": MODEL}),
        served.post("/v1/completions", {**OPTIONS, "model": f"{MODEL}:sea"}),
        served.post("/v1/completions", {**OPTIONS, "model": MODEL, "adapter": "sea"}),
    ]
    for answer, name in zip(answers, (None, "sea", "sea"), strict=True):
        assert answer.json()["choices"][0]["text"] == expected[name].text
        assert answer.json()["model"] == (f"{MODEL}:{name}" if name else MODEL)
    llm.unload_adapter("sea")
    talk = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "model": f"{MODEL}:land"}
    lines = served.post("/v1/chat/completions", {**talk, "stream": True}).text
    assert f'"model":"{MODEL}:land"' in lines
    asked = {"input": "Hi", "max_output_tokens": 3, "model": f"{MODEL}:sea"}
    assert served.post("/v1/responses", asked).json()["model"] == f"{MODEL}:sea"


@pytest.mark.parametrize(
    ("fields", "status", "field"),
    [
        ({"model": f"{MODEL}:sky"}, 404, "model"),
        ({"model": f"{MODEL}:"}, 404, "model"),
        ({"model": "other:sea"}, 404, "model"),
        ({"model": MODEL, "adapter": "sky"}, 400, "adapter"),
        ({"model": f"{MODEL}:sea", "adapter": "land"}, 400, "adapter"),
    ],
)
def test_an_unknown_adapter_is_refused(served, fields, status, field):
    answer = served.post("/v1/completions", {**OPTIONS, **fields})
    assert answer.status_code == status and answer.json()["error"]["param"] == field, answer.text
    if status == 404:  # the message has all names
        assert f"'{MODEL}', '{MODEL}:sea', '{MODEL}:land'" in answer.json()["error"]["message"]
