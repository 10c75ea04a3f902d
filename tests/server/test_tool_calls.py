"""Tool calls with OpenAI's own client. The model is a tiny random one whose template has tools: a constraint
makes it write what a trained model would.
"""

from __future__ import annotations

import json

import pytest
from hostile.tiny import write_tiny
from openai import BadRequestError, OpenAI

from glassloop.server.openai.tool_calls import CallStream, find_calls

from .conftest import serving

TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ASK = [{"role": "user", "content": "Weather?"}]
CITIES = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"City": {"enum": ["Paris", "Oslo"]}},
}
DAYS = {
    "type": "object",
    "properties": {"day": {"enum": [1, 2, 3]}},
    "required": ["day"],
    "additionalProperties": False,
}


def tool(name, parameters):
    return {"type": "function", "function": {"name": name, "description": "x", "parameters": parameters}}


TOOLS = [tool("weather", CITIES), tool("calendar", DAYS)]
PARIS = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
DAY = '<tool_call>{"name": "calendar", "arguments": {"day": 2}}</tool_call>'


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    file = write_tiny(tmp_path_factory.mktemp("tools") / "tiny.gguf", TEMPLATE, 4096)
    with (
        serving("--model", str(file), "--kv-memory", "32MB") as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as made,
    ):
        yield made


def ask(client, messages=ASK, says=None, **options):
    extra = {} if says is None else {"choice": [says]}
    options.setdefault("tools", TOOLS)
    options.setdefault("seed", 7)
    options.setdefault("max_tokens", 400)
    return client.chat.completions.create(model="tiny", messages=messages, extra_body=extra, **options)


def calls_of(message):
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]


def streamed(client, **options):
    """The content, the calls and the reasons of a stream, put together as clients do."""
    content, calls, reasons = "", {}, []
    for chunk in ask(client, stream=True, **options):
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        for part in choice.delta.tool_calls or []:
            assert part.id and part.type == "function" and part.index not in calls
            calls[part.index] = (part.function.name, json.loads(part.function.arguments))
        reasons.append(choice.finish_reason)
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    return content, [calls[index] for index in sorted(calls)], reasons[-1]


CASES = [
    (PARIS, None, [("weather", {"city": "Paris"})]),
    (f"I look. {PARIS}\n{DAY}", "I look. ", [("weather", {"city": "Paris"}), ("calendar", {"day": 2})]),
    ("It is <b>warm</b>, a <tool> says.", "It is <b>warm</b>, a <tool> says.", []),
    ("<tool_call>not JSON</tool_call>", "<tool_call>not JSON</tool_call>", []),
    ('<tool_call>{"name": "weather"}</tool_call>', '<tool_call>{"name": "weather"}</tool_call>', []),
    ("It ends with <tool_c", "It ends with <tool_c", []),
    (f"{PARIS} and more", "and more", [("weather", {"city": "Paris"})]),
    (PARIS.replace('"Paris"', "NaN"), PARIS.replace('"Paris"', "NaN"), []),
]


@pytest.mark.parametrize(("says", "content", "calls"), CASES)
def test_calls_are_found_in_what_the_model_writes(client, says, content, calls):
    choice = ask(client, says=says).choices[0]
    assert choice.message.content == content and calls_of(choice.message) == calls
    assert choice.finish_reason == ("tool_calls" if calls else "stop")
    assert streamed(client, says=says) == (content or "", calls, choice.finish_reason)


@pytest.mark.parametrize("name", ["weather", "calendar"])
def test_a_named_function_is_called_by_its_schema(client, name):
    choice = {"type": "function", "function": {"name": name}}
    answer = ask(client, tool_choice=choice, temperature=2).choices[0]
    ((called, arguments),) = calls_of(answer.message)
    assert called == name and answer.finish_reason == "tool_calls" and answer.message.content is None
    assert arguments in ({"city": "Paris"}, {"city": "Oslo"}, {"day": 1}, {"day": 2}, {"day": 3})
    assert set(arguments) == ({"city"} if name == "weather" else {"day"})
    assert streamed(client, tool_choice=choice, temperature=2) == ("", [(name, arguments)], "tool_calls")


def test_required_is_a_call_of_some_tool(client):
    made = set()
    for seed in range(8):
        answer = ask(client, tool_choice="required", seed=seed, temperature=2).choices[0]
        ((called, arguments),) = calls_of(answer.message)
        assert set(arguments) == ({"city"} if called == "weather" else {"day"})
        made.add(called)
    assert made == {"weather", "calendar"}


def test_the_result_can_be_sent_back(client):
    message = ask(client, says=PARIS).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "22 C"}
    answer = ask(client, [*ASK, message, result], says="It is warm.")
    assert answer.choices[0].message.content == "It is warm." and not answer.choices[0].message.tool_calls


def test_ids_of_calls_are_unique(client):
    answer = ask(client, says=PARIS + DAY, n=2)
    ids = [call.id for choice in answer.choices for call in choice.message.tool_calls]
    assert len(set(ids)) == 4


def test_one_call_at_a_time(client):
    message = ask(client, says=PARIS + DAY, parallel_tool_calls=False).choices[0].message
    assert [name for name, _ in calls_of(message)] == ["weather"]


def test_what_is_cut_off_is_text(client):
    choice = ask(client, says=PARIS, max_tokens=20).choices[0]
    assert choice.finish_reason == "length" and choice.message.content == PARIS[:20]
    assert not choice.message.tool_calls
    assert streamed(client, says=PARIS, max_tokens=20) == (PARIS[:20], [], "length")


def test_without_tools_all_is_text(client):
    assert ask(client, says=PARIS, tools=None).choices[0].message.content == PARIS
    assert ask(client, says=PARIS, tool_choice="none").choices[0].message.content == PARIS


@pytest.mark.parametrize(
    "options",
    [
        {"tool_choice": {"type": "function", "function": {"name": "nothing"}}},
        {"tool_choice": "required", "tools": []},
        {"tool_choice": "required", "tools": None},
        {"tool_choice": "required", "response_format": {"type": "json_object"}},
        {"tool_choice": "always"},
    ],
)
def test_choices_that_cannot_be_met_are_refused(client, options):
    with pytest.raises(BadRequestError) as caught:
        ask(client, **options)
    assert caught.value.body["param"] == "tool_choice"


def test_parameters_that_are_no_schema_are_refused_as_tools(client):
    with pytest.raises(BadRequestError, match="cannot be enforced") as caught:
        ask(client, tool_choice="required", tools=[tool("f", {"type": "nonsense"})])
    assert caught.value.body["param"] == "tools"


def test_a_function_needs_a_name(client):
    with pytest.raises(BadRequestError, match="without a name"):
        ask(client, tool_choice="required", tools=[{"type": "function", "function": {"parameters": DAYS}}])


@pytest.mark.parametrize("text", [case[0] for case in CASES])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_text_is_held_back_only_where_a_call_may_begin(text, size):
    stream = CallStream(demanded=False)
    sent = "".join(stream.add(text[at : at + size]) for at in range(0, len(text), size))
    content, _ = find_calls(text, demanded=False)
    assert content.startswith(sent) or text.startswith(sent)
    assert stream.sent == len(sent) and len(sent) >= len(text.split("<tool")[0])
