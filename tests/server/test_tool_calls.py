"""Tool calls with OpenAI's own client. The model is a tiny random one whose template has tools: a constraint
makes it write what a trained model would. The default model, whose template has none, is asked too.
"""

from __future__ import annotations

import json

import pytest
from hostile.tiny import write_tiny
from openai import BadRequestError, OpenAI

from glassloop import Sampling
from glassloop.decode.grammar import Grammar
from glassloop.errors import SamplingError
from glassloop.server.openai.conversation import Message, Tool, encode
from glassloop.server.openai.tool_calls import CallStream, FunctionName, ToolUse, _closed
from glassloop.text.call_form import HERMES
from glassloop.text.call_marks import template_tools
from glassloop.text.call_reader import read_calls
from glassloop.text.chat import ChatTemplate

from .conftest import MODEL, serving

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
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as made,
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


def test_some_of_the_tools_may_be_allowed(client):
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "calendar"}}]}
    for seed in range(4):
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
        answer = ask(client, tool_choice=choice, seed=seed, temperature=2).choices[0]
        ((called, _),) = calls_of(answer.message)
        assert called == "calendar"
    tools = [{"type": "function", **each["function"]} for each in TOOLS]
    made = client.responses.create(
        model="tiny",
        input="Weather?",
        tools=tools,
        max_output_tokens=200,
        tool_choice={
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "weather"}],
        },
        extra_body={"seed": 1},
    )
    (item,) = made.output
    assert item.type == "function_call" and item.name == "weather"


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "allowed_tools"},
        {"type": "function"},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
        {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "no"}}]},
        },
    ],
)
def test_choices_of_tools_that_mean_nothing_are_refused(client, choice):
    with pytest.raises(BadRequestError) as caught:
        ask(client, tool_choice=choice)
    assert caught.value.body["param"].startswith("tool_choice")


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


def test_a_call_that_is_cut_off_is_a_part_of_a_call(client):
    size = PARIS.index('"Paris')  # the tiny model writes a character with each token
    choice = ask(client, says=f"I look. {PARIS}", max_tokens=8 + size + 3).choices[0]
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "length" and choice.message.content == "I look. "
    assert call.function.name == "weather" and call.function.arguments == '{"city": "Par'
    assert ask(client, says=PARIS, max_tokens=20).choices[0].message.content == ""  # before its name


def test_a_format_is_for_answers_that_are_no_calls(client):
    """As agents with typed output send both."""
    schema = {"type": "object", "properties": {"k": {"enum": ["x"]}}, "required": ["k"]}
    schema["additionalProperties"] = False
    form = {"type": "json_schema", "json_schema": {"name": "c", "schema": schema}}
    answer = ask(client, tool_choice="required", response_format=form, temperature=2).choices[0]
    ((called, arguments),) = calls_of(answer.message)
    assert set(arguments) == ({"city"} if called == "weather" else {"day"})
    kinds = set()
    for seed in range(24):
        choice = ask(
            client, response_format=form, parallel_tool_calls=False, temperature=1.5, seed=seed
        ).choices[0]
        kinds.add(choice.finish_reason)
        if choice.finish_reason == "stop":
            assert json.loads(choice.message.content) == {"k": "x"}
        else:
            assert choice.finish_reason == "tool_calls" and calls_of(choice.message)
    assert kinds == {"stop", "tool_calls"}


def test_several_calls_can_be_demanded(client):
    counts = {
        len(
            ask(client, tool_choice="required", parallel_tool_calls=True, seed=seed, temperature=2)
            .choices[0]
            .message.tool_calls
        )
        for seed in range(12)
    }
    assert max(counts) > 1


def test_without_tools_all_is_text(client):
    assert ask(client, says=PARIS, tools=None).choices[0].message.content == PARIS
    assert ask(client, says=PARIS, tool_choice="none").choices[0].message.content == PARIS


@pytest.mark.parametrize(
    "options",
    [
        {"tool_choice": {"type": "function", "function": {"name": "nothing"}}},
        {"tool_choice": "required", "tools": []},
        {"tool_choice": "required", "tools": None},
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
    stream = CallStream(HERMES)
    sent = "".join(stream.add(text[at : at + size]) for at in range(0, len(text), size))
    content, _ = read_calls(text, HERMES)
    assert content.startswith(sent) or text.startswith(sent)
    assert stream.sent == len(sent) and len(sent) >= len(text.split("<tool")[0])


# ── forms ──────────────────────────────────────────────────────────────────────────────────────────────────

# Templates in the style of model families, with as much of them as says how calls are written.
LOOP = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}<|im_end|>\n{% endfor %}"
OPEN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
ARGUMENTS = "{{ call.function.arguments | tojson }}"
PAIRS = "{% for name, value in call.function.arguments | items %}"


def style(calls):
    """Returns a template that writes calls in this way."""
    return (
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ m.content or '' }}{% if m.tool_calls %}" + calls + "{% endif %}<|im_end|>\n{% endfor %}" + OPEN
    )


def each_call(text, between=""):
    """Returns the part of a template that writes a text for each call."""
    between = f"{{{{ {between!r} if not loop.last }}}}"
    return f"{{% for call in m.tool_calls %}}{text}{between}{{% endfor %}}"


OBJECT = '{"name": "{{ call.function.name }}", "arguments": ' + ARGUMENTS
VALUE = "{{ value if value is string else value | tojson }}"
STYLES = {
    "qwen": style(each_call("<tool_call>\n" + OBJECT + "}\n</tool_call>", "\n")),
    "mistral": style("[TOOL_CALLS][" + each_call(OBJECT + ', "id": "{{ call.id }}"}', ", ") + "]"),
    "mistral-args": style(each_call("[TOOL_CALLS]{{ call.function.name }}[ARGS]" + ARGUMENTS)),
    "llama": style(each_call('{"name": "{{ call.function.name }}", "parameters": ' + ARGUMENTS + "}", "; ")),
    "deepseek": style(
        "<｜tool▁calls▁begin｜>"
        + each_call(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ call.function.name }}\n```json\n" + ARGUMENTS
            + "\n```<｜tool▁call▁end｜>", "\n")
        + "<｜tool▁calls▁end｜>"
    ),
    "kimi": style(
        "<|calls_begin|>"
        + each_call(
            "<|call_begin|>functions.{{ call.function.name }}:{{ loop.index0 }}<|args|>" + ARGUMENTS
            + "<|call_end|>")
        + "<|calls_end|>"
    ),
    "coder": style(
        each_call(
            "<tool_call>\n<function={{ call.function.name }}>\n" + PAIRS
            + "<parameter={{ name }}>\n" + VALUE
            + "\n</parameter>\n{% endfor %}</function>\n</tool_call>", "\n")
    ),
    "glm": style(
        each_call(
            "<tool_call>{{ call.function.name }}" + PAIRS + "<arg_key>{{ name }}</arg_key><arg_value>" + VALUE
            + "</arg_value>{% endfor %}</tool_call>")
    ),
    "typed": style(
        "<calls>\n"
        + each_call(
            '<invoke name="{{ call.function.name }}">\n' + PAIRS
            + "<parameter name=\"{{ name }}\" string=\"{{ 'true' if value is string else 'false' }}\">"
            + VALUE
            + "</parameter>\n{% endfor %}</invoke>\n")
        + "</calls>"
    ),
    "python": style(
        "<|call_start|>["
        + each_call(
            "{{ call.function.name }}(" + PAIRS
            + "{{ name }}={% if value is string %}'{{ value }}'{% else %}{{ value }}{% endif %}"
            "{% if not loop.last %}, {% endif %}{% endfor %})", ", ")
        + "]<|call_end|>"
    ),
    "quoted": style(
        each_call(
            "<|tool_call>call:{{ call.function.name }}{{ '{' }}" + PAIRS
            + "{{ name }}:{% if value is string %}<|q|>{{ value }}<|q|>{% else %}{{ value | tojson }}"
            "{% endif %}{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}<tool_call|>")
    ),
}  # fmt: skip
ONE, TWO = {"city": "Paris"}, {"day": 2}
BOTH = [("weather", ONE), ("calendar", TWO)]
ABOUT = {"weather": CITIES, "calendar": DAYS}


def form_of(source):
    return template_tools(ChatTemplate(source), None).form


def written(source, calls):
    """Returns calls as a template writes them."""
    listed = [
        {"id": f"abcdefgh{place}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for place, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": "", "tool_calls": listed}
    text = ChatTemplate(source).render([*ASK, message], add_generation_prompt=False)
    return text.rpartition("<|im_start|>assistant\n")[2].removesuffix("<|im_end|>\n")


def read(text, form, whole=True):
    content, calls = read_calls(text, form, ABOUT, whole=whole)
    return content, [(call.name, json.loads(call.arguments)) for call in calls]


def test_a_form_is_known_by_what_a_template_writes():
    forms = [form_of(source) for source in STYLES.values()]
    assert None not in forms and len(set(forms)) == len(forms)
    assert form_of(STYLES["qwen"]) == HERMES and form_of(LOOP + OPEN) is HERMES
    assert form_of("{{ tools | tojson }}" + LOOP + OPEN) is None  # it has tools, and writes no calls


@pytest.mark.parametrize("name", STYLES)
def test_calls_of_each_form_are_found(name):
    source = STYLES[name]
    form, text = form_of(source), written(source, BOTH)
    assert read(text, form) == ("", BOTH)
    assert read(written(source, BOTH[:1]), form) == ("", BOTH[:1])
    odd = [("weather", {"city": "a, b)}] 'c' <d> 17"}), ("calendar", {"day": 3})]
    if name != "python":  # this template does not escape quotes
        assert read(written(source, odd), form) == ("", odd)
    for plain in ("It is warm.", "", '{"a": 1}', f"{form.mark or '{'}x"):
        assert read(plain, form) == (plain, [])
    if form.mark:
        assert read(f"I look. {text}", form) == ("I look. ", BOTH)


@pytest.mark.parametrize("name", STYLES)
def test_a_part_of_a_call_is_the_beginning_of_one(name):
    source = STYLES[name]
    form, text = form_of(source), written(source, BOTH)
    longest = 0
    for size in range(len(text)):
        content, calls = read_calls(text[:size], form, ABOUT, whole=False)
        assert form.mark == "" or size < len(form.mark) or content == ""
        assert [call.name for call in calls] in ([], ["weather"], ["weather", "calendar"])
        for call, (_, arguments) in zip(calls, BOTH, strict=False):
            assert json.dumps(arguments).startswith(call.arguments) if not call.whole else True
        assert len(calls) >= longest - 1
        longest = max(longest, len(calls))
    assert longest == 2


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("name", STYLES)
def test_calls_of_each_form_are_held_back(name, size):
    form = form_of(STYLES[name])
    text = written(STYLES[name], BOTH)
    for called in (text, text if form.mark else f"<|python_tag|>{text}"):
        stream = CallStream(form)
        assert "".join(stream.add(called[at : at + size]) for at in range(0, len(called), size)) == ""
    for plain in ("It is warm.", '{"a": 1} is an object'):
        stream = CallStream(form)
        assert "".join(stream.add(plain[at : at + size]) for at in range(0, len(plain), size)) == plain


@pytest.mark.parametrize("name", STYLES)
def test_each_form_is_enforced(llm, monkeypatch, name):
    """The default model with the template of another family: the grammar makes it write that family's calls,
    and lets through what that family writes."""
    source = STYLES[name]
    monkeypatch.setattr(llm.tokenizer, "chat_template", ChatTemplate(source))
    tools, form = [Tool(**each) for each in TOOLS], form_of(source)
    demanded = ToolUse(llm.tokenizer, tools, FunctionName(name="calendar"), parallel=True)
    run = llm.generate("x", Sampling(grammar=demanded._grammar(), max_tokens=200, seed=1))
    ((called, arguments),) = read(run.text, form)[1]
    assert called == "calendar" and arguments["day"] in (1, 2, 3) and run.finish_reason == "stop"

    def passes(text, parallel=True):
        auto = ToolUse(llm.tokenizer, tools, "auto", parallel=parallel)
        state = Grammar(Sampling(grammar=auto._grammar()), llm.config.vocab_size, llm.tokenizer)
        for token in [*llm.tokenizer.encode(text, add_special=False), llm.tokenizer.eos_ids[0]]:
            try:
                state.commit(token)
            except SamplingError:
                return False
        return True

    both = written(source, BOTH)
    assert passes(both) and not passes(both, parallel=False)
    assert passes(written(source, BOTH[:1]), parallel=False)
    assert passes("It is warm.") and passes('{"a": 1}') and passes("")
    assert not passes(written(source, [("weather", {"city": "Rome"})])) and not passes(
        written(source, [("no", {"city": "Paris"})])
    )
    if form.mark:
        assert passes(f"I look. {both}")


def test_marks_that_are_special_tokens_are_written_as_such(llm, monkeypatch):
    """As `[TOOL_CALLS]` is one of Mistral's: a special token of the default model stands for it."""
    mark = "<repo_name>"
    assert llm.tokenizer.id_of(mark) in llm.tokenizer.special_ids
    source = style(each_call(mark + "{{ call.function.name }}<file_sep>" + ARGUMENTS))
    form = form_of(source)
    monkeypatch.setattr(llm.tokenizer, "chat_template", ChatTemplate(source))
    tools = [Tool(**each) for each in TOOLS]
    for choice, before in ((FunctionName(name="weather"), ""), ("auto", "I look. ")):
        use = ToolUse(llm.tokenizer, tools, choice, parallel=True)
        run = llm.generate("x", Sampling(grammar=use._grammar(), max_tokens=60, seed=1))
        ids = [token.id for token in run.tokens]
        if choice == "auto":
            state = Grammar(Sampling(grammar=use._grammar()), llm.config.vocab_size, llm.tokenizer)
            ids = llm.tokenizer.encode(f"{before}{mark}weather<file_sep>{json.dumps(ONE)}")
            for token in ids:
                state.commit(token)
            assert state.mask()[llm.tokenizer.eos_ids[0]]
        assert llm.tokenizer.id_of(mark) in ids and llm.tokenizer.id_of("<file_sep>") in ids
        assert read(llm.tokenizer.decode(ids), form)[1][0][0] == "weather"


# ── templates without a place for tools ────────────────────────────────────────────────────────────────────


@pytest.fixture
def default(server):
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


def ask_default(client, messages=ASK, **options):
    options = {"model": MODEL, "tools": TOOLS, "max_tokens": 200, "temperature": 0, **options}
    return client.chat.completions.create(messages=messages, **options).choices[0]


def prompt_of(server, messages, **options):
    pieces = server.post("/tokenize", {"messages": messages, **options}).json()["pieces"]
    return bytes.fromhex("".join(piece["bytes"] for piece in pieces)).decode()


def test_the_default_model_calls_tools(default):
    for choice in ("required", {"type": "function", "function": {"name": "calendar"}}):
        answer = ask_default(default, tool_choice=choice)
        ((name, arguments),) = calls_of(answer.message)
        assert answer.finish_reason == "tool_calls" and answer.message.content is None
        assert set(arguments) == ({"city"} if name == "weather" else {"day"})
    answer = ask_default(default, tool_choice="auto")
    assert bool(answer.message.tool_calls) == (answer.finish_reason == "tool_calls")


def test_tools_and_calls_are_text_where_the_template_has_no_place(server):
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
    }
    history = [
        {"role": "system", "content": "Be brief."},
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "c", "content": "22 C"},
        {"role": "tool", "tool_call_id": "c", "content": "23 C"},
    ]
    shown = prompt_of(server, history, tools=TOOLS)
    written = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    assert shown.startswith("<|im_start|>system\nBe brief.\n\nYou can call these functions:\n")
    for each in TOOLS:
        assert json.dumps(each["function"]) in shown
    assert f"<|im_start|>assistant\n{written}\n{written}<|im_end|>" in shown
    results = "<tool_response>\n22 C\n</tool_response>\n<tool_response>\n23 C\n</tool_response>"
    assert f"<|im_start|>user\n{results}<|im_end|>" in shown
    # Without tools the earlier calls are there all the same.
    assert written in prompt_of(server, history) and "You can call" not in prompt_of(server, history)
    assert "system\nYou can call" in prompt_of(server, ASK, tools=TOOLS)


def test_templates_without_system_messages_tell_tools_in_the_first_message(llm, monkeypatch):
    strict = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    monkeypatch.setattr(llm.tokenizer, "chat_template", ChatTemplate(strict))
    ids = encode(llm.tokenizer, [Message(**each) for each in ASK], [Tool(**each) for each in TOOLS])
    shown = llm.tokenizer.decode(ids)
    assert shown.startswith("<user>You can call these functions:") and shown.endswith("Weather?")


def test_ids_have_nine_characters_where_the_template_wants_them(llm, monkeypatch):
    mistral = (
        "{% for m in messages %}{% for call in m.tool_calls or [] %}"
        "{% if call.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}[{{ call.id }}]{% endfor %}"
        "{% if m.role == 'tool' %}[{{ m.tool_call_id }}]{% endif %}{% endfor %}"
    )
    monkeypatch.setattr(llm.tokenizer, "chat_template", ChatTemplate(mistral))
    call = {"id": "call_0123456789abcdef_0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = [
        *ASK,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "x"},
    ]
    shown = llm.tokenizer.decode(encode(llm.tokenizer, [Message(**each) for each in history]))
    assert len(shown) == 22 and shown[:11] == shown[11:]


def test_schemas_that_cannot_be_enforced_leave_auto_free(default):
    bad = [tool("f", {"type": "object", "properties": {"x": {"type": "nonsense"}}})]
    assert ask_default(default, tools=bad, max_tokens=3).finish_reason == "length"
    with pytest.raises(BadRequestError, match="cannot be enforced"):
        ask_default(default, tools=bad, tool_choice="required")


def test_objects_have_declared_properties_only_unless_the_schema_says_otherwise():
    number = {"type": "object", "properties": {"x": {"type": "integer"}}}
    nested = {"type": "object", "properties": {"a": number, "b": {"default": number}}}
    shut = {**number, "additionalProperties": False}
    assert _closed(nested) == {
        "type": "object",
        "properties": {"a": shut, "b": {"default": number}},
        "additionalProperties": False,
    }
    for free in (
        {**number, "additionalProperties": True},
        {"type": "object"},
        {"allOf": [number, number]},
        {**number, "patternProperties": {"^y": {}}},
        {"allOf": 5},
    ):
        assert _closed(free) == free


@pytest.mark.parametrize("function", [{"name": "f", "parameters": 5}, {"name": 5}, {"parameters": {}}])
def test_functions_that_are_none_are_refused(default, function):
    for choice in ("auto", "required"):
        with pytest.raises(BadRequestError) as caught:
            ask_default(default, tools=[{"type": "function", "function": function}], tool_choice=choice)
        assert caught.value.body["param"] == "tools"
