"""Ollama's API with its own client, and by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from ollama import Client, ResponseError

from glassloop import Sampling

from .conftest import MODEL

HI = [{"role": "user", "content": "Say hi."}]
OPTIONS = {"num_predict": 12, "temperature": 0.5, "seed": 7, "num_ctx": 4096}
SAMPLING = Sampling(max_tokens=12, temperature=0.5, seed=7)
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
            "required": ["city"],
        },
    },
}


@pytest.fixture
def ollama(server):
    return Client(host=server.url, timeout=120)


def lines(answer):
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


@pytest.mark.parametrize("name", [MODEL, f"{MODEL}:latest"])
def test_a_chat_is_the_engines_own(ollama, llm, name):
    run = llm.chat(HI, SAMPLING)
    answer = ollama.chat(model=name, messages=HI, options=OPTIONS)
    assert answer.message.content == run.text and answer.message.role == "assistant"
    assert answer.done and answer.done_reason == ("stop" if run.finish_reason == "stop" else "length")
    assert (answer.prompt_eval_count, answer.eval_count) == (len(run.prompt_ids), len(run.tokens))
    assert answer.total_duration >= answer.eval_duration > 0
    parts = list(ollama.chat(model=name, messages=HI, options=OPTIONS, stream=True))
    assert "".join(part.message.content for part in parts) == run.text
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == len(run.tokens) and len(parts) > 5


def test_each_answer_is_a_run(server, llm):
    """The stream is the default, as in Ollama."""
    answer = server.post("/api/chat", {"model": MODEL, "messages": HI, "options": OPTIONS})
    text = "".join(line["message"]["content"] for line in lines(answer))
    assert server.get(f"/api/runs/{answer.headers['x-glassloop-run']}").json()["text"] == text
    assert text == llm.chat(HI, SAMPLING).text


def test_a_prompt_is_answered_or_continued(ollama, llm):
    answer = ollama.generate(model=MODEL, prompt="Say hi.", system="Be brief.", options=OPTIONS)
    messages = [{"role": "system", "content": "Be brief."}, *HI]
    assert answer.response == llm.chat(messages, SAMPLING).text
    raw = ollama.generate(model=MODEL, prompt="The capital of", raw=True, options=OPTIONS)
    assert raw.response == llm.generate("The capital of", SAMPLING).text
    parts = list(ollama.generate(MODEL, "The capital of", raw=True, options=OPTIONS, stream=True))
    assert "".join(part.response for part in parts) == raw.response


def test_tools_are_called_and_their_results_read(ollama, server):
    ask = [{"role": "user", "content": "Is it warm in Oslo?"}]
    call = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    history = [
        *ask,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": "3 degrees"},
    ]
    answer = ollama.chat(model=MODEL, messages=history, tools=[WEATHER], options=OPTIONS)
    assert answer.done
    # A tool cannot be demanded here, so the grammar does it.
    text = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    body = {"messages": ask, "tools": [WEATHER], "options": {"choice": [text], "num_predict": 60}}
    *_, called, last = lines(server.post("/api/chat", body))
    (made,) = called["message"]["tool_calls"]
    assert made["function"] == {"name": "weather", "arguments": {"city": "Oslo"}} and last["done"]


def test_formats_and_logprobs(ollama, llm):
    schema = {"type": "object", "properties": {"hi": {"enum": ["a", "b"]}}, "required": ["hi"]}
    options = {"temperature": 0, "num_predict": 60}
    answer = ollama.chat(model=MODEL, messages=HI, format=schema, options=options)
    assert json.loads(answer.message.content)["hi"] in ("a", "b")
    answer = ollama.chat(model=MODEL, messages=HI, options=OPTIONS, logprobs=True, top_logprobs=2)
    run = llm.chat(HI, SAMPLING)
    assert [each.logprob for each in answer.logprobs] == [token.raw_logprob for token in run.tokens]
    assert all(len(each.top_logprobs) == 2 for each in answer.logprobs)


def test_embeddings(ollama, client):
    texts = ["The cat sat on the mat.", "A kitten was on a rug."]
    told = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    answer = ollama.embed(model=MODEL, input=texts)
    assert np.array_equal(answer.embeddings, [each.embedding for each in told.data])
    assert answer.prompt_eval_count == told.usage.prompt_tokens
    assert np.array_equal(ollama.embeddings(MODEL, texts[0]).embedding, told.data[0].embedding)
    assert len(ollama.embed(MODEL, "word " * 20_000).embeddings) == 1  # cut to the context
    with pytest.raises(ResponseError, match="input has"):
        ollama.embed(MODEL, "word " * 20_000, truncate=False)


def test_the_models_are_listed_and_described(ollama, server, llm):
    (listed,) = ollama.list().models
    assert listed.model == MODEL and listed.size > 50e6 and len(listed.digest) == 64
    assert listed.details.family == "llama" and listed.details.parameter_size == "134.5M"
    (loaded,) = ollama.ps().models
    assert (loaded.name, loaded.digest) == (MODEL, listed.digest)
    shown = ollama.show(MODEL)
    assert shown.modelinfo["llama.context_length"] == llm.config.context
    assert shown.template and "tools" in shown.capabilities
    assert server.get("/api/version").json()["version"].count(".") == 2


def test_a_request_without_a_prompt_loads_the_model(server, ollama):
    assert ollama.generate(model=MODEL).done_reason == "load"
    assert ollama.chat(model=MODEL, messages=[]).done_reason == "load"
    assert ollama.generate(model=MODEL, keep_alive=0).done_reason == "unload"


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("chat", {"messages": [{"role": "user", "content": "x", "images": ["AAAA"]}]}, 400, "images"),
        ("chat", {"messages": HI, "model": "llama3"}, 404, "llama3"),
        ("chat", {"messages": HI, "options": {"mirostat": 2}}, 400, "options.mirostat: 0 is expected"),
        ("chat", {"messages": HI, "options": {"repeat_last_n": 64}}, 400, "options.repeat_last_n"),
        ("chat", {"messages": HI, "options": {"repeat_penalty": -1}}, 400, "options.repeat_penalty"),
        ("chat", {"messages": HI, "options": {"num_predict": 2, "max_tokens": 3}}, 400, "num_predict"),
        ("chat", {"messages": HI, "format": {"type": "nothing"}}, 400, "format"),
        ("generate", {"prompt": "x", "suffix": "y"}, 400, "/api/edits/infill"),
        ("generate", {"prompt": "x", "template": "{{ .Prompt }}"}, 400, "template"),
        ("generate", {"prompt": "x", "raw": True, "system": "y"}, 400, "system"),
        ("embed", {"input": "x", "dimensions": 3}, 400, "dimensions"),
    ],
)
def test_what_is_wrong_is_said_in_ollamas_shape(server, path, body, status, words):
    answer = server.post(f"/api/{path}", body)
    assert answer.status_code == status and set(answer.json()) == {"error"}
    assert words in answer.json()["error"]
