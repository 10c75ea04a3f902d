"""Conversations in OpenAI's form, and how they become the token ids of a prompt."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, Literal

from pydantic import Field, model_validator
from pydantic_core import from_json

from glassloop.errors import TextError
from glassloop.server.http.body_fields import (
    MOST_MESSAGES,
    MOST_PARTS,
    MOST_TOOLS,
    Name,
    check_type,
    many,
    text_or,
    texts_in,
)
from glassloop.server.openai.tool_messages import add_system, add_to_first, describe_tools, write_calls
from glassloop.server.sampling_options import Body
from glassloop.server.service import Service
from glassloop.text.call_form import HERMES
from glassloop.text.chat import ChatTemplate
from glassloop.text.template_forms import forms_of
from glassloop.text.tokenizer import Tokenizer

_TEXT_TYPES = ("text", "input_text", "output_text")
_TEXT_ONLY = 'the model reads text only; send {"type": "text", "text": "…"} or a plain text'


class TextPart(Body):
    type: Literal["text", "input_text", "output_text"] = "text"
    text: str
    annotations: many(Any, 1000) | None = None  # type: ignore[valid-type]  # of an answer that is sent back
    logprobs: many(Any, 100_000) | None = None  # type: ignore[valid-type]
    cache_control: dict[str, Any] | None = None  # ignored: prefixes are always cached

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, value: Any) -> Any:
        return check_type(value, _TEXT_TYPES, _TEXT_ONLY)


class Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: text_or(many(TextPart, MOST_PARTS)) | None = None  # type: ignore[valid-type]
    name: Name | None = None
    tool_calls: many(dict[str, Any], MOST_TOOLS) | None = None  # type: ignore[valid-type]
    tool_call_id: Name | None = None
    refusal: str | None = None
    reasoning_content: str | None = None  # for templates that write it
    annotations: many(Any, 1000) | None = None  # type: ignore[valid-type]  # of an answer that is sent back
    # Of histories from other servers and clients. They are ignored.
    reasoning: str | None = None
    reasoning_details: many(Any, 1000) | None = None  # type: ignore[valid-type]
    thinking_blocks: many(Any, 1000) | None = None  # type: ignore[valid-type]
    provider_specific_fields: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    id: str | None = None
    audio: None = None
    function_call: None = None


Messages = many(Message, MOST_MESSAGES, least=1)


class Tool(Body):
    type: Literal["function"]
    function: dict[str, Any] = Field(description="name, description, parameters")


Tools = many(Tool, MOST_TOOLS)


def encode_messages(
    service: Service,
    messages: Sequence[Message],
    tools: Sequence[Tool] | None = None,
    *,
    field: str = "messages",
    note: str = "",
    continue_final: bool = False,
    values: dict[str, Any] | None = None,
) -> list[int]:
    """Returns the token ids of a conversation, whose length is checked before and after it is encoded. An
    error names `field`; `note` says what else counts; `values` are further ones for the template."""
    service.check_texts(texts_in([messages, tools]), field, service.longest_text)
    if service.llm.upstream is not None:
        return _for_another_engine(service, messages, tools, continue_final, values)
    ids = encode(service.llm.tokenizer, messages, tools, continue_final=continue_final, values=values)
    service.check_length(len(ids), field, note)
    return ids


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def effort_values(service: Service, effort: Effort | None) -> dict[str, Any]:
    """Returns what an effort of thinking is in the variables of the chat template; nothing if it has none."""
    template = service.llm.tokenizer.chat_template
    if effort is None or template is None:
        return {}
    if effort == "none" and template.has_variable("enable_thinking"):
        return {"enable_thinking": False}
    values = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    return {name: value for name, value in values.items() if template.has_variable(name)}


def as_recorded(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Returns messages as the record of a run has them: as they were sent, less what no template reads."""
    recorded = []
    for message in messages:
        each = message.model_dump(exclude_none=True, exclude={"annotations"})
        if isinstance(message.content, list):
            each["content"] = [{"type": part.type, "text": part.text} for part in message.content]
        recorded.append(each)
    return recorded


def encode(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    tools: Sequence[Tool] | None = None,
    *,
    add_generation_prompt: bool = True,
    continue_final: bool = False,
    values: dict[str, Any] | None = None,
) -> list[int]:
    """Returns the token ids of a conversation as the model's template writes it. No text of a message becomes
    a special token."""
    if not tokenizer.can_chat:
        message = "messages cannot be written: this model has no chat template; use /v1/completions"
        raise TextError(message, field="messages")
    if tokenizer.chat_template is None:
        raise TextError("the tokens of messages are not known: another engine has the tokenizer")
    options: dict[str, Any] = {
        **(values or {}),
        "add_generation_prompt": add_generation_prompt,
        "continue_final": continue_final,
    }
    if not tools:
        return _write(tokenizer, messages, options)
    described = [tool.model_dump() for tool in tools]
    forms = forms_of(tokenizer)
    assert forms is not None
    if forms.tools.lists:
        return _write(tokenizer, messages, {**options, "tools": described})
    # The template has no place for tools. The system message lists them, or the first one by the user where
    # the template has no system messages.
    text = describe_tools([tool.function for tool in tools], forms.tools.known or HERMES)
    as_text = list if forms.tools.calls else write_calls
    try:
        return _write(tokenizer, messages, options, lambda each: add_system(as_text(each), text))
    except TextError:
        return _write(tokenizer, messages, options, lambda each: add_to_first(as_text(each), text))


def _for_another_engine(
    service: Service,
    messages: Sequence[Message],
    tools: Sequence[Tool] | None,
    continued: bool,
    values: dict[str, Any] | None,
) -> list[int]:
    """Returns the id that stands for a conversation which another engine writes with its own template."""
    fields = {"tools": tools, "continue_final_message": continued, "chat_template_kwargs": values}
    for name, value in fields.items():
        if value:
            problem = f"is given; messages are passed on to {service.llm.upstream}, without it"
            raise TextError.about(name, problem)
    return service.llm.tokenizer.encode_chat(as_recorded(messages))


def _write(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    options: dict[str, Any],
    rewrite: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] | None = None,
) -> list[int]:
    """Returns the token ids of messages, whose tool calls are given to the template in the form that it
    takes, after `rewrite`, or as text if it takes none."""
    assert tokenizer.chat_template is not None
    no_text = None if _knows_null(tokenizer.chat_template) else ""
    written = _plain(messages, no_text)
    has_calls = any(each.tool_calls or each.role in ("tool", "function") for each in messages)
    if has_calls and rewrite is None:
        forms = forms_of(tokenizer)
        rewrite = None if forms is None or forms.tools.calls else write_calls
    if rewrite is not None:
        written = rewrite(written)
    if not any(each.get("tool_calls") for each in written):
        return tokenizer.encode_chat(written, **options)
    if _SHORT_IDS in tokenizer.chat_template.source:
        written = [_with_short_ids(each) for each in written]
    # Clients send the arguments of a call as JSON text. Most templates want the object, to write it as JSON.
    parsed = [
        {**each, "tool_calls": _parse_arguments(each["tool_calls"])} if each.get("tool_calls") else each
        for each in written
    ]
    try:
        return tokenizer.encode_chat(parsed, **options)
    except TextError:  # others write the text as it is
        return tokenizer.encode_chat(written, **options)


_SHORT_IDS = "length != 9"  # Mistral's templates refuse ids of calls that do not have nine characters


def _with_short_ids(message: dict[str, Any]) -> dict[str, Any]:
    """Returns a message with an id of nine characters in place of each id of a call."""
    shortened = dict(message)
    if isinstance(shortened.get("tool_call_id"), str):
        shortened["tool_call_id"] = _short_id(shortened["tool_call_id"])
    if shortened.get("tool_calls"):
        shortened["tool_calls"] = [
            {**call, "id": _short_id(str(call.get("id", place)))}
            for place, call in enumerate(shortened["tool_calls"])
        ]
    return shortened


def _short_id(id: str) -> str:
    return sha256(id.encode("utf-8", "replace")).hexdigest()[:9]


def _knows_null(template: ChatTemplate) -> bool:
    """Returns whether a template asks for messages without content. The others can only write a text."""
    sources = (template.source, *template.variants.values())
    return any(re.search(r"content\W{0,3}\s+is\s+(not\s+)?none", source, re.I) for source in sources)


def _parse_arguments(calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns tool calls with their arguments as objects, where these are the JSON text of one."""
    parsed = []
    for call in calls:
        function = call.get("function")
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            with suppress(ValueError):
                arguments = from_json(function["arguments"], allow_inf_nan=False)
                if isinstance(arguments, dict):
                    call = {**call, "function": {**function, "arguments": arguments}}
        parsed.append(call)
    return parsed


_NOT_WRITTEN = {
    *("refusal", "annotations", "reasoning", "reasoning_details", "thinking_blocks"),
    *("provider_specific_fields", "cache_control", "id"),
}


def _plain(messages: Sequence[Message], no_text: str | None) -> list[dict[str, Any]]:
    """Returns messages as templates expect them. `no_text` is the content of those that only call tools."""
    plain = []
    for message in messages:
        each = message.model_dump(exclude_none=True, exclude=_NOT_WRITTEN)
        if each["role"] == "developer":
            each["role"] = "system"
        if isinstance(message.content, list):
            each["content"] = [{"type": "text", "text": part.text} for part in message.content]
        elif message.content is None and message.refusal is not None:
            each["content"] = message.refusal
        elif message.content is None and message.tool_calls:
            each["content"] = no_text
        plain.append(each)
    return plain
