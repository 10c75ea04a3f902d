"""LangChain's `ChatOpenAI`: streams, bound tools, structured output, embeddings."""

from __future__ import annotations

from typing import Literal

import pytest

from .conftest import MODEL

langchain_openai = pytest.importorskip("langchain_openai")
messages = pytest.importorskip("langchain_core.messages")
pydantic = pytest.importorskip("pydantic")


class Weather(pydantic.BaseModel):
    """The weather of a city."""

    city: Literal["Paris", "Oslo"]


ASK = "What is the weather in Paris?"


@pytest.fixture
def chat(base):
    return langchain_openai.ChatOpenAI(
        base_url=base, api_key="none", model=MODEL, temperature=0, max_tokens=60, max_retries=0, timeout=120
    )


def test_chat_and_stream(chat):
    whole = chat.invoke(ASK)
    assert whole.content and whole.usage_metadata["output_tokens"] > 0
    parts = list(chat.stream(ASK, stream_usage=True))
    assert "".join(part.content for part in parts) == whole.content
    assert any(part.usage_metadata for part in parts)


@pytest.mark.parametrize("choice", ["any", "Weather", True])
def test_bound_tools(chat, choice):
    tools = chat.bind_tools([Weather], tool_choice=choice)
    answer = tools.invoke(ASK)
    (call,) = answer.tool_calls
    assert call["name"] == "Weather" and call["args"]["city"] in ("Paris", "Oslo")
    streamed = None
    for part in tools.stream(ASK):
        streamed = part if streamed is None else streamed + part
    assert streamed.tool_calls[0]["args"] == call["args"]


def test_a_tool_loop(chat):
    tools = chat.bind_tools([Weather])
    asked = messages.HumanMessage(ASK)
    answer = chat.bind_tools([Weather], tool_choice="any").invoke([asked])
    result = messages.ToolMessage("22 C", tool_call_id=answer.tool_calls[0]["id"])
    last = tools.invoke([asked, answer, result])
    assert last.content or last.tool_calls


@pytest.mark.parametrize("method", ["function_calling", "json_schema", "json_mode"])
def test_structured_output(chat, method):
    if method == "json_mode":
        made = chat.with_structured_output(None, method=method)
        assert made.invoke('Answer with the JSON {"city": "Paris"} and nothing else.') is not None
    else:
        assert isinstance(chat.with_structured_output(Weather, method=method).invoke(ASK), Weather)


def test_the_responses_api(base):
    chat = langchain_openai.ChatOpenAI(
        base_url=base, api_key="none", model=MODEL, temperature=0, use_responses_api=True, max_tokens=60
    )
    assert chat.invoke(ASK).text
    (call,) = chat.bind_tools([Weather], tool_choice="any").invoke(ASK).tool_calls
    assert call["args"]["city"] in ("Paris", "Oslo")


def test_embeddings(base):
    made = langchain_openai.OpenAIEmbeddings(
        base_url=base, api_key="none", model=MODEL, check_embedding_ctx_length=False
    )
    assert len(made.embed_query("a text")) == 576


def test_a_conversation_that_is_too_long(chat):
    import openai

    with pytest.raises(openai.BadRequestError) as caught:
        chat.invoke("word " * 9000)
    assert caught.value.code == "context_length_exceeded"
