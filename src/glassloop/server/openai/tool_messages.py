"""Conversations with tools for templates that have no place for them: tools, calls and results as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from glassloop.text.call_form import HERMES, CallForm


def describe_tools(functions: Sequence[dict[str, Any]], form: CallForm = HERMES) -> str:
    """Returns the tools as the text of a system message, for templates without a place for them."""
    listed = "\n".join(json.dumps(each, ensure_ascii=False) for each in functions)
    return (
        f"You can call these functions:\n{listed}\n\n"
        f"To call a function, answer only with\n{form.write('NAME', '{…}')}\n"
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
