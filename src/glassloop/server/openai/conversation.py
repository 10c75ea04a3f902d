"""Conversations in OpenAI's form, and how they become the token ids of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from glassloop.errors import TextError
from glassloop.server.errors import unsupported
from glassloop.server.fields import MOST_MESSAGES, MOST_PARTS, MOST_TOOLS, Name, many, text_or, texts_in
from glassloop.server.options import Body
from glassloop.server.service import Service
from glassloop.text.tokenizer import Tokenizer


class TextPart(Body):
    type: Literal["text", "input_text", "output_text"] = "text"
    text: str
    annotations: many(Any, 1000) | None = None  # type: ignore[valid-type]  # of an answer that is sent back
    logprobs: many(Any, 100_000) | None = None  # type: ignore[valid-type]


class Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: text_or(many(TextPart, MOST_PARTS)) | None = None  # type: ignore[valid-type]
    name: Name | None = None
    tool_calls: many(dict[str, Any], MOST_TOOLS) | None = None  # type: ignore[valid-type]
    tool_call_id: Name | None = None
    refusal: str | None = None
    annotations: many(Any, 1000) | None = None  # type: ignore[valid-type]  # of an answer that is sent back
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
) -> list[int]:
    """Returns the token ids of a conversation, whose length is checked before and after it is encoded. An
    error names `field`; `note` says what else counts."""
    service.check_texts(texts_in([messages, tools]), field, service.longest_text)
    ids = encode(service.llm.tokenizer, messages, tools, continue_final=continue_final)
    service.check_length(len(ids), field, note)
    return ids


def encode(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    tools: Sequence[Tool] | None = None,
    *,
    continue_final: bool = False,
) -> list[int]:
    """Returns the token ids of a conversation as the model's template writes it. No text of a message becomes
    a special token."""
    if tokenizer.chat_template is None:
        message = "messages cannot be written: this model has no chat template; use /v1/completions"
        raise TextError(message, field="messages")
    written = _plain(messages)
    if not tools:
        return tokenizer.encode_chat(written, continue_final=continue_final)
    described = [tool.model_dump() for tool in tools]
    ids = tokenizer.encode_chat(written, tools=described, continue_final=continue_final)
    if ids == tokenizer.encode_chat(written, continue_final=continue_final):
        why = "this model's chat template has no place for them; describe them in a message"
        raise unsupported("tools", why)
    return ids


def _plain(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Returns messages as templates expect them."""
    made = []
    for message in messages:
        each = message.model_dump(exclude_none=True, exclude={"refusal", "annotations"})
        if each["role"] == "developer":
            each["role"] = "system"
        if isinstance(message.content, list):
            each["content"] = [{"type": "text", "text": part.text} for part in message.content]
        elif message.content is None and message.refusal is not None:
            each["content"] = message.refusal
        made.append(each)
    return made
