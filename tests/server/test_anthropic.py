"""Anthropic's protocol with its own client, and the requests that Claude Code sends."""

from __future__ import annotations

import json

import pytest
from anthropic import Anthropic, BadRequestError, NotFoundError

from glassloop import Sampling

from .conftest import MODEL

HI = [{"role": "user", "content": "Say hi."}]
WEATHER = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
        "required": ["city"],
    },
}
ASKED = {"model": MODEL, "max_tokens": 12, "extra_body": {"seed": 7, "temperature": 0.5}}
ASK = [{"role": "user", "content": "Is it warm in Oslo?"}]


@pytest.fixture
def anthropic(server):
    with Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=120) as made:
        yield made


def create(anthropic, messages=HI, **options):
    return anthropic.messages.create(**{**ASKED, "messages": messages, **options})


def sent(server, **body):
    return server.post("/v1/messages", {"max_tokens": 8, "messages": HI, **body})


# ── answers ────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_answer_is_the_engines_own(anthropic, server, llm):
    run = llm.chat(HI, Sampling(max_tokens=12, temperature=0.5, seed=7))
    answer = create(anthropic)
    assert [block.type for block in answer.content] == ["text"] and answer.content[0].text == run.text
    assert (answer.role, answer.model, answer.stop_sequence) == ("assistant", MODEL, None)
    assert answer.stop_reason == ("end_turn" if run.finish_reason == "stop" else "max_tokens")
    used = answer.usage
    read = used.cache_read_input_tokens + used.cache_creation_input_tokens
    assert used.input_tokens + read == len(run.prompt_ids) and used.output_tokens == len(run.tokens)
    kept = server.get(f"/api/runs/{answer.id.removeprefix('msg_')}").json()
    assert kept["text"] == run.text and answer._request_id == f"req_{kept['id']}"


def test_the_system_is_the_first_message(anthropic, llm):
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    expected = llm.chat(
        [{"role": "system", "content": "Be brief."}, *HI], Sampling(max_tokens=12, temperature=0.5, seed=7)
    )
    assert create(anthropic, system=system).content[0].text == expected.text
    assert create(anthropic, system="Be brief.").content[0].text == expected.text


def test_a_stop_sequence_is_named(anthropic):
    whole = create(anthropic).content[0].text
    word = whole.split()[1]
    answer = create(anthropic, stop_sequences=[word])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", word)
    assert answer.content[0].text == whole[: whole.index(word)]
    assert create(anthropic, max_tokens=2).stop_reason == "max_tokens"


def test_the_last_message_of_the_assistant_is_continued(anthropic, llm):
    messages = [*HI, {"role": "assistant", "content": "Hi there, my"}]
    answer = create(anthropic, messages)
    ids = llm.tokenizer.encode_chat(messages, continue_final=True)
    run = llm.generate(ids, Sampling(max_tokens=12, temperature=0.5, seed=7))
    assert answer.content[0].text == run.text


def test_what_was_read_from_the_cache_is_counted(anthropic):
    long = [{"role": "user", "content": "Say hi to " + ", ".join(f"guest {number}" for number in range(60))}]
    first, second = (create(anthropic, long, max_tokens=2).usage for _ in range(2))
    total = first.input_tokens + first.cache_read_input_tokens
    assert second.cache_read_input_tokens > 0 and second.input_tokens > 0
    assert second.input_tokens + second.cache_read_input_tokens == total


@pytest.mark.parametrize("field", ["output_config", "output_format"])
def test_an_answer_has_the_format_that_is_asked_for(server, field):
    schema = {"type": "object", "properties": {"hi": {"enum": ["a", "b"]}}, "required": ["hi"]}
    format = {"type": "json_schema", "schema": schema}
    body = {
        field: format if field == "output_format" else {"format": format},
        "max_tokens": 60,
        "temperature": 0,
    }
    answer = sent(server, **body).json()
    assert json.loads(answer["content"][0]["text"])["hi"] in ("a", "b")


# ── tools ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_tool_is_called_and_its_result_read(anthropic, choice):
    called = create(anthropic, ASK, tools=[WEATHER], tool_choice=choice, max_tokens=60)
    (use,) = called.content
    assert called.stop_reason == "tool_use" and use.name == "weather"
    assert use.id.startswith("toolu_") and use.input["city"] in ("Paris", "Oslo")
    result = {
        "type": "tool_result",
        "tool_use_id": use.id,
        "content": [{"type": "text", "text": "3 degrees"}],
    }
    history = [
        *ASK,
        {"role": "assistant", "content": [block.to_dict() for block in called.content]},
        {"role": "user", "content": [result, {"type": "text", "text": "Answer in one word."}]},
    ]
    answer = create(anthropic, history, tools=[WEATHER], tool_choice={"type": "none"})
    assert answer.stop_reason in ("end_turn", "max_tokens")


def test_tools_results_and_thoughts_reach_the_template(server, anthropic):
    """The prompt is that of the same conversation in OpenAI's form."""
    use = {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Oslo"}}
    results = [{"type": "tool_result", "tool_use_id": "a", "content": "cold", "is_error": True}]
    history = [
        *ASK,
        {"role": "assistant", "content": [{"type": "text", "text": "Let me see."}, use]},
        {"role": "user", "content": [*results, {"type": "text", "text": "Well?"}]},
    ]
    function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    chat = [
        *ASK,
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [{"id": "a", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "a", "content": "Error: cold"},
        {"role": "user", "content": "Well?"},
    ]
    described = {name: WEATHER[name] for name in ("name", "description")}
    tools = [{"type": "function", "function": {**described, "parameters": WEATHER["input_schema"]}}]
    counted = anthropic.messages.count_tokens(model=MODEL, messages=history, tools=[WEATHER]).input_tokens
    assert counted == server.post("/tokenize", {"messages": chat, "tools": tools}).json()["count"]
    used = create(anthropic, history, tools=[WEATHER], max_tokens=1).usage
    assert counted == used.input_tokens + used.cache_read_input_tokens


# ── streams ────────────────────────────────────────────────────────────────────────────────────────────────


def events_of(text):
    events = [part.splitlines() for part in text.split("\n\n") if part.startswith("event: ")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in events]


def test_a_stream_is_the_same_answer(anthropic, server):
    whole = create(anthropic)
    with anthropic.messages.stream(**ASKED, messages=HI) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text and final.content[0].text == text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    answer = sent(server, stream=True, temperature=0.5, seed=7)
    events = events_of(answer.text)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert all(name == data["type"] for name, data in events)
    names = [name for name, _ in events]
    assert names[:4] == ["message_start", "ping", "content_block_start", "content_block_delta"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    start = events[0][1]["message"]
    assert start["content"] == [] and start["stop_reason"] is None and start["usage"]["output_tokens"] == 0
    assert start["usage"]["input_tokens"] + start["usage"]["cache_read_input_tokens"] > 0
    assert events[-2][1]["usage"]["output_tokens"] == 8


def test_calls_are_streamed(anthropic):
    options = {"model": MODEL, "messages": ASK, "tools": [WEATHER], "max_tokens": 60}
    options |= {"tool_choice": {"type": "any"}, "extra_body": {"seed": 7}}
    whole = anthropic.messages.create(**options)
    with anthropic.messages.stream(**options) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["tool_use"] and final.stop_reason == "tool_use"
    assert final.content[0].input == whole.content[0].input
    assert "input_json" in kinds and "text" not in kinds


# ── counting, and what is refused ──────────────────────────────────────────────────────────────────────────


def test_tokens_are_counted_beyond_the_context(anthropic):
    long = [{"role": "user", "content": "a b c d " * 3000}]
    assert anthropic.messages.count_tokens(model=MODEL, messages=long).input_tokens > 8192
    with pytest.raises(BadRequestError, match="prompt is too long"):
        create(anthropic, long)


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            "image is not supported: the model reads text",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0]"),
        ({"messages": []}, "messages is empty"),
        ({"max_tokens": 0}, "max_tokens: at least 1"),
        ({"stop_sequences": ["a" * 100_000]}, "stop_sequences"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305 is not"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name is missing"),
        ({"n": 2}, "n: 1 is expected"),
        ({"temprature": 1}, "did you mean temperature"),
    ],
)
def test_what_is_wrong_is_said_in_anthropics_shape(server, body, words):
    answer = sent(server, **body)
    error = answer.json()
    assert answer.status_code == 400 and set(error) == {"type", "error", "request_id"}
    assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error"
    assert words in error["error"]["message"]


def test_a_field_that_is_missing_and_a_model_that_is_not_here(server, anthropic):
    answer = server.post("/v1/messages", {"messages": HI})
    assert answer.status_code == 400 and "max_tokens is missing" in answer.json()["error"]["message"]
    with pytest.raises(NotFoundError) as caught:
        anthropic.messages.create(model="claude-opus", messages=HI, max_tokens=1)
    assert caught.value.body["error"]["type"] == "not_found_error"
    assert server.get("/v1/messages").json()["type"] == "error"


def test_the_models_are_listed(anthropic):
    (model,) = anthropic.models.list()
    assert (model.id, model.type, model.display_name) == (MODEL, "model", MODEL)
    assert model.created_at.year > 2000 and anthropic.models.retrieve(MODEL).id == MODEL


# ── Claude Code ────────────────────────────────────────────────────────────────────────────────────────────


def tool_of_claude_code(number):
    parameter = {"type": "string", "description": f"The absolute path of file {number}"}
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"file_path": parameter, "limit": {"type": "number"}},
        "required": ["file_path"],
        "additionalProperties": False,
    }
    return {"name": f"Tool{number}", "description": f"Reads file {number}.\n\nUsage:", "input_schema": schema}


def test_the_requests_of_claude_code_are_answered(server):
    """A turn with tools, the check of the quota, and a count, in the shapes that its client sends."""
    cached = {"type": "ephemeral"}
    system = [
        {"type": "text", "text": "You are Claude Code, a CLI.", "cache_control": cached},
        {"type": "text", "text": "You are an interactive agent.\n", "cache_control": cached},
    ]
    reminder = {"type": "text", "text": "<system-reminder>\nToday is Monday.\n</system-reminder>"}
    said = {"type": "text", "text": "list the files", "cache_control": cached}
    headers = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
        "anthropic-dangerous-direct-browser-access": "true",
        "x-api-key": "none",
        "x-app": "cli",
        "x-stainless-lang": "js",
    }
    body = {
        "model": MODEL,
        "max_tokens": 6,
        "messages": [{"role": "user", "content": [reminder, said]}],
        "system": system,
        "tools": [tool_of_claude_code(number) for number in range(12)],
        "metadata": {"user_id": "user_1_account__session_2"},
        "thinking": {"budget_tokens": 31999, "type": "enabled"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "temperature": 1,
        "stream": True,
    }
    answer = server.post("/v1/messages?beta=true", body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert events_of(answer.text)[-1][0] == "message_stop"
    quota = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}]}
    assert server.post("/v1/messages?beta=true", quota, headers=headers).status_code == 200
    counted = {name: body[name] for name in ("model", "messages", "tools", "system", "thinking")}
    answer = server.post("/v1/messages/count_tokens?beta=true", counted, headers=headers)
    assert answer.json()["input_tokens"] > 100
