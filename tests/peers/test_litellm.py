"""LiteLLM with its `openai/` and `hosted_vllm/` providers."""

from __future__ import annotations

import json
from copy import deepcopy  # litellm changes what it is given

import pytest

from .conftest import MODEL

litellm = pytest.importorskip("litellm")

ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "x", "parameters": CITY}}


@pytest.fixture(params=["openai", "hosted_vllm"])
def ask(base, request):
    def ask(messages=ASK, **options):
        options = {"temperature": 0, "max_tokens": 60, "num_retries": 0, **options}
        model = f"{request.param}/{MODEL}"
        return litellm.completion(model, messages, api_base=base, api_key="none", **options)

    return ask


def test_chat_and_stream(ask):
    whole = ask().choices[0].message.content
    assert "".join(part.choices[0].delta.content or "" for part in ask(stream=True)) == whole


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_tools(ask, choice):
    answer = ask(tools=[deepcopy(TOOL)], tool_choice=choice).choices[0]
    (call,) = answer.message.tool_calls
    assert answer.finish_reason == "tool_calls" and call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Oslo")
    result = {"role": "tool", "tool_call_id": call.id, "content": "22 C"}
    last = ask([*ASK, answer.message, result], tools=[deepcopy(TOOL)]).choices[0].message
    assert last.content or last.tool_calls
    chunks = list(ask(tools=[deepcopy(TOOL)], tool_choice=choice, stream=True))
    built = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls[0]
    assert built.function.arguments == call.function.arguments


def test_structured_output(ask):
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": deepcopy(CITY), "strict": True}}
    made = json.loads(ask(response_format=form).choices[0].message.content)
    assert made["city"] in ("Paris", "Oslo")


def test_extra_parameters(ask):
    assert ask(top_p=0.9, seed=1, stop=["."], user="me", extra_body={"top_k": -1}).choices


def test_a_conversation_that_is_too_long(ask):
    with pytest.raises(litellm.ContextWindowExceededError):
        ask([{"role": "user", "content": "word " * 9000}])


def test_embeddings(base):
    answer = litellm.embedding(f"openai/{MODEL}", ["a"], api_base=base, api_key="none")
    assert len(answer.data[0]["embedding"]) == 576
