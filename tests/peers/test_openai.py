"""OpenAI's own client, in the newest version: chat, tools, structured output, responses, errors."""

from __future__ import annotations

import json
from typing import Literal

import pytest

from .conftest import MODEL

openai = pytest.importorskip("openai")
pydantic = pytest.importorskip("pydantic")

HI = [{"role": "user", "content": "Say hi."}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "get_weather", "description": "The weather of a city.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]


class City(pydantic.BaseModel):
    name: Literal["Paris", "Oslo"]
    size: Literal["small", "large"]


@pytest.fixture
def client(base):
    with openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=120) as made:
        yield made


def test_chat_and_stream(client):
    options = {"model": MODEL, "messages": HI, "temperature": 0}
    whole = client.chat.completions.create(**options).choices[0].message.content
    with client.chat.completions.stream(**options) as stream:
        assert stream.get_final_completion().choices[0].message.content == whole


def test_a_tool_loop(client):
    options = {"model": MODEL, "tools": [TOOL], "temperature": 0, "max_tokens": 60}
    answer = client.chat.completions.create(messages=ASK, tool_choice="required", **options).choices[0]
    (call,) = answer.message.tool_calls
    assert answer.finish_reason == "tool_calls" and call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Oslo")
    result = {"role": "tool", "tool_call_id": call.id, "content": "22 C, sunny"}
    after = client.chat.completions.create(messages=[*ASK, answer.message, result], **options).choices[0]
    assert after.message.content or after.message.tool_calls


def test_tools_with_the_streaming_helper(client):
    options = {"model": MODEL, "tools": [TOOL], "temperature": 0, "max_tokens": 60}
    with client.chat.completions.stream(messages=ASK, tool_choice="required", **options) as stream:
        kinds = [event.type for event in stream]
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert "tool_calls.function.arguments.done" in kinds
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Oslo")


def test_pydantic_models(client):
    options = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 60}
    answer = client.chat.completions.parse(response_format=City, **options)
    assert isinstance(answer.choices[0].message.parsed, City)
    tool = openai.pydantic_function_tool(City)
    answer = client.chat.completions.parse(tools=[tool], tool_choice="required", **options)
    assert isinstance(answer.choices[0].message.tool_calls[0].function.parsed_arguments, City)


def test_responses(client):
    from openai.types.responses import Response

    options = {"model": MODEL, "temperature": 0, "max_output_tokens": 60}
    answer = client.responses.create(input="Say hi.", **options)
    Response.model_validate(answer.model_dump())
    assert client.responses.parse(input="A city", text_format=City, **options).output_parsed
    tool = {"type": "function", **FUNCTION, "strict": True}
    asked = client.responses.create(input=ASK, tools=[tool], tool_choice="required", **options)
    (call,) = asked.output
    assert call.type == "function_call" and json.loads(call.arguments)["city"] in ("Paris", "Oslo")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "22 C"}
    assert client.responses.create(input=[*ASK, *asked.output, result], tools=[tool], **options).output
    with client.responses.stream(input=ASK, tools=[tool], tool_choice="required", **options) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output[0].arguments == call.arguments
    assert "response.function_call_arguments.done" in kinds


def test_embeddings_and_models(client):
    assert len(client.embeddings.create(model=MODEL, input=["a", "b"]).data) == 2
    assert MODEL in [model.id for model in client.models.list()]


def test_errors(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 9000}])
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-9", messages=HI)
