"""Clients that are not OpenAI's: curl, and Hugging Face's."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from glassloop import Sampling

from .conftest import MODEL

STORY = [{"role": "user", "content": "Tell me about the sea."}]


def curl(*arguments: str) -> str:
    done = subprocess.run(
        ["curl", "-sS", "--fail-with-body", "-m", "60", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl(server, llm):
    body = {"prompt": "Once upon a time", "max_tokens": 8, "seed": 3, "temperature": 0.7}
    run = llm.generate(body["prompt"], Sampling(max_tokens=8, seed=3, temperature=0.7))
    ask = ["-H", "content-type: application/json", f"{server.url}/v1/completions", "-d"]
    assert json.loads(curl(*ask, json.dumps(body)))["choices"][0]["text"] == run.text
    lines = curl("-N", *ask, json.dumps({**body, "stream": True})).splitlines()
    told = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(each["choices"][0]["text"] for each in told) == run.text
    assert lines[-2:] == ["data: [DONE]", ""] and not any(lines[1::2])
    assert "glassloop_runs_total" in curl(f"{server.url}/metrics")


def test_hugging_faces_client(server, llm):
    from huggingface_hub import InferenceClient

    client = InferenceClient(base_url=f"{server.url}/v1", timeout=120)
    options = {"max_tokens": 8, "seed": 3, "temperature": 0.7}
    run = llm.chat(STORY, Sampling(**options))
    answer = client.chat_completion(STORY, model=MODEL, logprobs=True, top_logprobs=2, **options)
    assert answer.choices[0].message.content == run.text
    assert [each.logprob for each in answer.choices[0].logprobs.content] == [
        t.raw_logprob for t in run.tokens
    ]
    stream = client.chat_completion(STORY, model=MODEL, stream=True, **options)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == run.text
