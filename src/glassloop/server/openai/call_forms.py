"""How models write tool calls: one form for each family, as data.

A chat template that has tools also shows the form, and is recognized here by it. Where a template has no
place for tools, they are described in the system message, and calls have the form `HERMES`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from glassloop.text.chat import ChatTemplate

_JSON_CALL = ('{"name": ', ', "arguments": ', "}")


@dataclass(frozen=True, slots=True)
class CallForm:
    """The texts around the names and arguments of calls: `opening`, then for each call `call[0]`, its name,
    `call[1]`, its arguments as JSON and `call[2]`, with `between` between calls, then `closing`. In a call
    that is JSON itself the name is a JSON string."""

    signs: tuple[str, ...]  # a template with these texts has this form
    mark: str  # where calls begin in an answer
    call: tuple[str, str, str] = _JSON_CALL
    opening: str = ""
    between: str = ""
    closing: str = ""
    end: str = ""  # a text that follows the calls and is no content
    first: bool = False  # calls are the whole answer; `mark` within a text means nothing

    @property
    def is_json(self) -> bool:
        """Whether a call is a JSON object with its name."""
        return self.call[1].startswith(",")

    def write(self, name: str, arguments: str) -> str:
        """Returns one call as the model writes it."""
        before, middle, after = self.call
        written = json.dumps(name, ensure_ascii=False) if self.is_json else name
        return f"{self.opening}{before}{written}{middle}{arguments}{after}{self.closing}"


HERMES = CallForm(
    signs=("<tool_call>",),
    mark="<tool_call>",
    call=('<tool_call>\n{"name": ', ', "arguments": ', "}\n</tool_call>"),
    between="\n",
    end="</tool_call>",
)
PLAIN = CallForm(signs=(), mark='{"name": ', first=True)  # for calls that are demanded in no known form
# The first form whose signs a template has is the template's form.
FORMS = (
    # DeepSeek V3 and R1, then V3.1
    CallForm(
        signs=("<｜tool▁calls▁begin｜>", "```json"),
        mark="<｜tool▁calls▁begin｜>",
        opening="<｜tool▁calls▁begin｜>",
        call=("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>"),
        between="\n",
        closing="<｜tool▁calls▁end｜>",
        end="<｜tool▁calls▁end｜>",
    ),
    CallForm(
        signs=("<｜tool▁calls▁begin｜>",),
        mark="<｜tool▁calls▁begin｜>",
        opening="<｜tool▁calls▁begin｜>",
        call=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
        closing="<｜tool▁calls▁end｜>",
        end="<｜tool▁calls▁end｜>",
    ),
    # Mistral: the newest models, then those with a list after the mark
    CallForm(signs=("[ARGS]",), mark="[TOOL_CALLS]", call=("[TOOL_CALLS]", "[ARGS]", "")),
    CallForm(
        signs=("[TOOL_CALLS] [",),
        mark="[TOOL_CALLS]",
        opening="[TOOL_CALLS] [",
        between=", ",
        closing="]",
    ),
    CallForm(
        signs=("[TOOL_CALLS]",), mark="[TOOL_CALLS]", opening="[TOOL_CALLS][", between=", ", closing="]"
    ),
    # Phi-4-mini
    CallForm(
        signs=("<|/tool_call|>",),
        mark="<|tool_call|>",
        opening="<|tool_call|>[",
        between=", ",
        closing="]<|/tool_call|>",
        end="<|/tool_call|>",
    ),
    # Qwen, Hermes, SmolLM3; a template with `<function=` has another form, which is XML
    HERMES,
    # Llama 3
    CallForm(
        signs=('"parameters": ',),
        mark='{"name": ',
        call=('{"name": ', ', "parameters": ', "}"),
        between="; ",
        first=True,
    ),
)
_NOT_READ = ("<function=", "<arg_key>")  # signs of forms that are none of these
PYTHON_TAG = "<|python_tag|>"  # Llama may write it before a call


def has_tools(template: ChatTemplate) -> bool:
    """Returns whether a template mentions tools at all."""
    return any(re.search(r"\btools\b", source) for source in _sources(template))


def has_calls(template: ChatTemplate) -> bool:
    """Returns whether a template writes the calls of earlier messages."""
    return any("tool_calls" in source for source in _sources(template))


def form_of(template: ChatTemplate) -> CallForm | None:
    """Returns the form of the calls that the model of a template writes, None if it is not known."""
    if not has_tools(template):
        return HERMES
    # In a template a text may be a Jinja string, where line ends and quotes are escaped.
    whole = "\n".join(_sources(template)).replace('\\"', '"')
    if any(sign in whole for sign in _NOT_READ):
        return None
    return next((form for form in FORMS if all(sign in whole for sign in form.signs)), None)


def _sources(template: ChatTemplate) -> tuple[str, ...]:
    return (template.source, *template.variants.values())


def describe_tools(functions: Sequence[dict[str, Any]]) -> str:
    """Returns the tools as the text of a system message, for templates without a place for them."""
    listed = "\n".join(json.dumps(each, ensure_ascii=False) for each in functions)
    return (
        f"You can call these functions:\n{listed}\n\n"
        f"To call a function, answer only with\n{HERMES.write('NAME', '{…}')}\n"
        "where the arguments are a JSON object that matches the parameters of the function. The next message"
        " has the result in <tool_response>. If no function is needed, answer in plain text."
    )


def write_calls(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns messages without tool calls and results, which become text, for templates that have no place
    for them."""
    written: list[dict[str, Any]] = []
    results = False  # the last message has results of tools
    for each in messages:
        if each.get("tool_calls"):
            calls = [_written(call) for call in each["tool_calls"]]
            content = "\n".join([*filter(None, [_text(each)]), *calls])
            plain = {name: value for name, value in each.items() if name != "tool_calls"}
            written.append({**plain, "content": content})
        elif each["role"] in ("tool", "function"):
            result = f"<tool_response>\n{_text(each)}\n</tool_response>"
            if results:
                written[-1]["content"] += f"\n{result}"
            else:
                written.append({"role": "user", "content": result})
            results = True
            continue
        else:
            written.append(each)
        results = False
    return written


def add_system(messages: Sequence[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Returns messages with a text at the end of the system message, which is made if there is none."""
    first, *rest = messages
    if first["role"] != "system":
        return [{"role": "system", "content": text}, *messages]
    return [{**first, "content": f"{_text(first)}\n\n{text}"}, *rest]


def add_to_first(messages: Sequence[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Returns messages with a text before the first one by the user, for templates without system
    messages."""
    extended = list(messages)
    place = next((i for i, each in enumerate(extended) if each["role"] == "user"), None)
    if place is None:
        return [{"role": "user", "content": text}, *extended]
    extended[place] = {**extended[place], "content": f"{text}\n\n{_text(extended[place])}"}
    return extended


def _written(call: dict[str, Any]) -> str:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments", "{}")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return HERMES.write(str(function.get("name", "")), arguments)


def _text(message: dict[str, Any]) -> str:
    """Returns the content of a message as one text."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
