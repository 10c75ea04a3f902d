"""Tool calls: the grammar of a call that the client demands, and the calls in what the model has written.

A model writes calls between `<tool_call>` and `</tool_call>`, each as JSON with `name` and `arguments`. When
`tool_choice` demands a call, the grammar lets it write that JSON and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_core import from_json

from glassloop.server.errors import invalid
from glassloop.server.fields import Name
from glassloop.server.openai.conversation import Tool
from glassloop.server.options import Body
from glassloop.shown import shown

_BEGIN, _END = "<tool_call>", "</tool_call>"


class FunctionName(Body):
    name: Name


class NamedTool(Body):
    type: Literal["function"]
    function: FunctionName


class CalledFunction(BaseModel):
    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str
    type: Literal["function"]
    function: CalledFunction


def call_schema(tools: Sequence[Tool], choice: NamedTool | str | None) -> dict[str, Any] | None:
    """Returns the JSON schema of the call that `tool_choice` demands, None if it demands none."""
    if choice in (None, "auto", "none"):
        return None
    names = [tool.function.get("name") for tool in tools]
    if isinstance(choice, NamedTool):
        if choice.function.name not in names:
            raise invalid("tool_choice", f"tool_choice names {shown(choice.function.name)}, which is no tool")
        return _schema(tools[names.index(choice.function.name)], "#")
    if not tools:
        raise invalid("tool_choice", "tool_choice is required, and tools is empty")
    if len(tools) == 1:
        return _schema(tools[0], "#")
    return {"anyOf": [_schema(tool, f"#/anyOf/{index}") for index, tool in enumerate(tools)]}


def _schema(tool: Tool, place: str) -> dict[str, Any]:
    """Returns the schema of a call of a tool, for this place in a schema."""
    name, parameters = tool.function.get("name"), tool.function.get("parameters") or {"type": "object"}
    if not isinstance(name, str):
        raise invalid("tools", "tools has a function without a name")
    return {
        "type": "object",
        "properties": {
            "name": {"const": name},
            "arguments": _moved(parameters, f"{place}/properties/arguments"),
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """Returns a schema that stands at a place of another one: its references lead there."""
    if isinstance(schema, list):
        return [_moved(each, place) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: place + value[1:]
        if name == "$ref" and isinstance(value, str) and value.startswith("#")
        else _moved(value, place)
        for name, value in schema.items()
    }


def find_calls(text: str, demanded: bool) -> tuple[str, list[CalledFunction]]:
    """Returns the text of an answer without its tool calls, and the calls. An answer with a call that cannot
    be read is all text."""
    if demanded:
        call = _read(text)
        return (text, []) if call is None else ("", [call])
    content, *blocks = text.split(_BEGIN)
    calls = []
    for block in blocks:
        written, _, after = block.partition(_END)
        call = _read(written)
        if call is None:
            return text, []
        calls.append(call)
        content += after.lstrip()
    return content, calls


def _read(written: str) -> CalledFunction | None:
    try:
        call = from_json(written, allow_inf_nan=False)
    except ValueError:
        return None
    if not isinstance(call, dict):
        return None
    name, arguments = call.get("name"), call.get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return CalledFunction(name=name, arguments=json.dumps(arguments, ensure_ascii=False))


class CallStream:
    """The text of an answer as it is streamed: from where a call may begin it is held back to the end."""

    def __init__(self, demanded: bool) -> None:
        self._is_call = demanded
        self._held = ""
        self.sent = 0  # characters

    def add(self, text: str) -> str:
        """Returns what can be sent after this text has come."""
        if self._is_call:
            return ""
        self._held += text
        place = self._held.find(_BEGIN)
        self._is_call = place >= 0
        if not self._is_call:
            place = len(self._held) - _begun(self._held)
        ready, self._held = self._held[:place], self._held[place:]
        self.sent += len(ready)
        return ready


def _begun(text: str) -> int:
    """Returns how many characters at the end of a text may be the beginning of a call."""
    return next((size for size in range(len(_BEGIN) - 1, 0, -1) if text.endswith(_BEGIN[:size])), 0)
