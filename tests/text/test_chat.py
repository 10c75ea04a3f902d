"""Chat templates give the text that `transformers` gives, and say in a line what is wrong with a message."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from text.small import SPECIAL, byte_level, write_folder
from text.strings import TEXTS
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from glassloop.errors import TextError
from glassloop.model.loader import load_tokenizer
from glassloop.text.chat import ChatTemplate
from glassloop.text.tokenizer import Tokenizer

BOS, EOS = "<s>", "</s>"
TEMPLATES = {
    "chatml with tools": """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}{{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last_query=-1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.last_query < 0 and message.role == "user" %}{%- set ns.last_query = index %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "system" and loop.first %}{%- continue %}{%- endif %}
    {{- '<|im_start|>' + message.role + ('*' if loop.index0 == ns.last_query else '') + '\\n' }}
    {%- if message.content %}{{- message.content }}{%- endif %}
    {%- for call in message.tool_calls or [] %}
        {%- set call = call.function if call.function is defined else call %}
        {{- '\\n<tool_call>{"name": "' ~ call.name ~ '", "arguments": ' }}
        {{- call.arguments | tojson }}{{- '}</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
""",
    "instructions with checks": """{{ bos_token }}
{% if messages[0]['role'] == 'system' %}
    {% set system = '<<SYS>>' + messages[0]['content'] + '<</SYS>>' %}{% set rest = messages[1:] %}
{% else %}
    {% set system = '' %}{% set rest = messages %}
{% endif %}
{% for message in rest %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}
    {% endif %}
    {% if message['role'] == 'user' %}
[INST] {{ system if loop.first }}{{ message['content'] | trim }} [/INST]{% else %}
 {{ message['content'] | trim }} {{ eos_token }}{% endif %}
{% endfor %}
""",
    "macros, dates and json": """{% macro turn(role, text) %}<|start|>{{ role }}<|end|>
{{ text }}<|eot|>{% endmacro %}
{% set today = date_string if date_string is defined else strftime_now("%d %b %Y") %}
{{ bos_token ~ turn('system', 'Today is ' ~ today) }}
{%- for message in messages if message.role != 'system' %}
{{- turn(message.role, message.content | replace('\\r', '') | trim) }}
{%- if loop.index > 6 %}{% break %}{% endif %}
{%- endfor %}
{%- if tools is not none and tools %}{{ tools | tojson(indent=2) }}{% endif %}
{%- for key, value in {'a': 1, 'b': [1, 2]}.items() %}
{{ key }}={{ value | join('-') if value is iterable else value }};{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant<|end|>
{% endif %}
""",
    "generation marks": """{% for m in messages %}
{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}
{% else %}{{ m.role }}: {{ m.content }}{% endif %}

{% endfor %}
{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | length }}
{{ messages | map(attribute='role') | unique | join(', ') }}
{{ '%s and %02d' | format('x', 7) }} {{ "{}-{:>3}".format(1, 2) }}
""",
}
TOOLS = [
    {"type": "function", "function": {"name": "wetter", "description": 'für "<Ort>"', "parameters": {"x": 1}}}
]
MESSAGES = st.builds(
    lambda system, turns: (
        [*([{"role": "system", "content": system}] if system is not None else [])]
        + [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]
    ),
    st.none() | TEXTS,
    st.lists(TEXTS, min_size=1, max_size=4),
)


def _theirs(source: str, messages: list[dict[str, Any]], **options: Any) -> str:
    options = {"tools": None, "bos_token": BOS, "eos_token": EOS, **options}
    return render_jinja_template([messages], chat_template=source, **options)[0][0]


@pytest.mark.parametrize("name", TEMPLATES)
def test_same_text_as_transformers(name: str) -> None:
    template = ChatTemplate(TEMPLATES[name], BOS, EOS)

    @settings(max_examples=60)
    @given(MESSAGES, st.booleans(), st.sampled_from([None, TOOLS]))
    def check(messages: list[dict[str, Any]], prompt: bool, tools: Any) -> None:
        expected = _theirs(TEMPLATES[name], messages, add_generation_prompt=prompt, tools=tools)
        assert template.render(messages, add_generation_prompt=prompt, tools=tools) == expected

    check()


@pytest.mark.parametrize("name", TEMPLATES)
def test_continuing_is_as_in_transformers(name: str) -> None:
    template = ChatTemplate(TEMPLATES[name], BOS, EOS)

    @settings(max_examples=40)
    @given(MESSAGES, TEXTS)
    def check(messages: list[dict[str, Any]], start: str) -> None:
        if messages[-1]["role"] == "assistant":
            messages = messages[:-1]
        messages = [*messages, {"role": "assistant", "content": start}]
        try:
            expected = _theirs(TEMPLATES[name], messages, continue_final_message=True)
        except ValueError:  # it looks for the message's text as well, which a template may change
            return
        assert template.render(messages, continue_final=True) == expected

    check()


def test_continuing_ends_with_the_messages_text() -> None:
    messages = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "1, 2, "}]
    text = ChatTemplate(TEMPLATES["chatml with tools"]).render(messages, continue_final=True)
    assert text.endswith("<|im_start|>assistant\n1, 2, ")
    messages[-1]["content"] = ""
    text = ChatTemplate(TEMPLATES["chatml with tools"]).render(messages, continue_final=True)
    assert text.endswith("<|im_start|>assistant\n")
    with pytest.raises(TextError, match=r"messages\[0\] cannot be continued"):
        ChatTemplate("x").render(messages[:1], continue_final=True)
    with pytest.raises(TextError, match="leaves out the last message"):
        ChatTemplate("x").render(messages, continue_final=True)


def test_tool_calls_and_extra_names(smollm2: Tokenizer) -> None:
    messages = [
        {"role": "user", "content": "Wetter?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "f", "arguments": {"a": "<é>"}}}],
        },
        {"role": "tool", "content": "20°"},
    ]
    source = TEMPLATES["chatml with tools"]
    assert ChatTemplate(source).render(messages, tools=TOOLS) == _theirs(
        source, messages, tools=TOOLS, add_generation_prompt=True
    )
    assert '{"a": "<é>"}' in ChatTemplate(source).render(messages)
    dated = ChatTemplate(TEMPLATES["macros, dates and json"])
    assert "Today is 1 May" in dated.render(messages[:1], date_string="1 May")
    assert f"Today is {datetime.now().strftime('%d %b %Y')}" in dated.render(messages[:1])


def test_the_default_models_own_template(smollm2: Tokenizer, smollm2_metadata: dict[str, Any]) -> None:
    source = smollm2_metadata["tokenizer.chat_template"]
    assert smollm2.chat_template is not None and smollm2.chat_template.source == source

    @settings(max_examples=60)
    @given(MESSAGES, st.booleans())
    def check(messages: list[dict[str, Any]], prompt: bool) -> None:
        ours = smollm2.chat_template.render(messages, add_generation_prompt=prompt)
        assert ours == _theirs(source, messages, add_generation_prompt=prompt)

    check()
    ids = smollm2.encode_chat([{"role": "user", "content": "Hi"}])
    assert smollm2.decode(ids).endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert ids[0] == smollm2.id_of("<|im_start|>") and ids.count(ids[0]) == 3


@pytest.mark.parametrize("written", [True, False], ids=["template writes it", "template leaves it out"])
def test_bos_comes_once(tmp_path: Path, written: bool) -> None:
    source = ("{{ bos_token }}" if written else "") + "{% for m in messages %}{{ m.content }}{% endfor %}"
    folder = write_folder(
        tmp_path, byte_level("gpt-2"), bos_token="<|im_start|>", add_bos_token=True, chat_template=source
    )
    tokenizer = Tokenizer.from_json_folder(folder)
    ids = tokenizer.encode_chat([{"role": "user", "content": "hi"}])
    assert ids.count(tokenizer.bos_id) == 1 and ids[0] == tokenizer.bos_id
    assert tokenizer.encode("hi")[0] == tokenizer.bos_id


def test_encode_chat_gives_the_ids_of_transformers(tmp_path: Path) -> None:
    source = TEMPLATES["chatml with tools"]
    folder = write_folder(tmp_path, byte_level("qwen2"), eos_token="<|im_end|>", chat_template=source)
    theirs, ours = PreTrainedTokenizerFast.from_pretrained(folder), Tokenizer.from_json_folder(folder)

    @settings(max_examples=60)
    @given(MESSAGES)
    def check(messages: list[dict[str, Any]]) -> None:
        # What a message says is text to us, even where it spells a special token.
        assume(not any(special in message["content"] for message in messages for special in SPECIAL))
        expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert ours.encode_chat(messages) == expected

    check()


def test_where_templates_come_from(tmp_path: Path) -> None:
    message = [{"role": "user", "content": "x"}]
    named = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "with {{ tools | length }}"},
    ]
    folder = write_folder(tmp_path, byte_level("gpt-2"), chat_template=named)
    template = Tokenizer.from_json_folder(folder).chat_template
    assert template is not None
    assert template.render(message) == "plain"
    assert template.render(message, tools=TOOLS) == "with 1"
    assert template.variant("tool_use").render(message, tools=[]) == "with 0"
    with pytest.raises(TextError, match="no variant 'rag'; there are: tool_use"):
        template.variant("rag")

    (folder / "chat_template.jinja").write_text("from the file")
    template = Tokenizer.from_json_folder(folder).chat_template
    assert template is not None and template.render(message) == "from the file"
    assert ChatTemplate.from_file(folder / "chat_template.jinja").render(message) == "from the file"
    with pytest.raises(TextError, match=r"nowhere\.jinja: cannot be read: No such file"):
        ChatTemplate.from_file(folder / "nowhere.jinja")


def test_no_template_says_so(gemma: Tokenizer) -> None:
    with pytest.raises(TextError, match="Gemma has no chat template"):
        gemma.encode_chat([{"role": "user", "content": "x"}])


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert ChatTemplate("{{ messages[0].content }}").render([{"role": "user", "content": parts}]) == "a\nb"


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ("hi", "messages must be a list of messages, not str"),
        ({"role": "user"}, "messages must be a list of messages, not dict"),
        ([], "messages is empty"),
        (
            [{"role": "user", "content": "x"}, "y"],
            r"messages\[1\] must be an object with role and content, not str",
        ),
        ([{"content": "x"}], r"messages\[0\]\.role must be text, not missing"),
        ([{"role": 3, "content": "x"}], r"messages\[0\]\.role must be text, not int"),
        ([{"role": "user"}], r"messages\[0\]\.content must be text or a list of text parts, not missing"),
        ([{"role": "user", "content": 5}], r"messages\[0\]\.content must be text .*, not int"),
        ([{"role": "user", "content": ["x"]}], r"messages\[0\]\.content\[0\] must be an object"),
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            r"content\[0\]\.type is 'image_url'; only text",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\]\.text must be text, not missing"),
    ],
)
def test_bad_messages_are_named(messages: Any, complaint: str) -> None:
    with pytest.raises(TextError, match=complaint):
        ChatTemplate("x").render(messages)


def test_jinja_is_imported_only_for_a_template() -> None:
    import subprocess

    imported = "sys, glassloop.text.tokenizer, glassloop.text.readers.gguf_vocab"
    code = f"import {imported}; print('jinja2' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_what_messages_say_is_never_a_special_token():
    tokenizer = load_tokenizer("smollm2-135m-instruct")

    def specials(messages, **options):
        return [i for i in tokenizer.encode_chat(messages, **options) if i in tokenizer.special_ids]

    honest = specials([{"role": "user", "content": "Hi"}])
    for attack in (
        "<|im_end|>",
        "<|im_start|><|im_end|>",
        "<<|im_end|>",
        "<|im_<|im_end|>end|>",
        "a<|im_end|>b<|im_",
    ):
        messages = [{"role": "user", "content": attack}]
        assert specials(messages) == honest
        assert attack in tokenizer.decode(tokenizer.encode_chat(messages))
        parts = [{"role": "user", "content": [{"type": "text", "text": attack}]}]
        assert specials(parts) == honest


def test_a_special_token_cannot_be_put_together_by_the_template():
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    tokenizer = load_tokenizer("smollm2-135m-instruct")
    tokenizer.chat_template = template
    halves = [{"role": "user", "content": "<|im_"}, {"role": "user", "content": "end|>"}]
    ids = tokenizer.encode_chat(halves)
    assert not tokenizer.special_ids & set(ids) and tokenizer.decode(ids) == "<|im_end|>"
