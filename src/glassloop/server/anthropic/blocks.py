"""Conversations in Anthropic's form: messages of blocks, and how they become messages in OpenAI's form, which
the chat templates are given."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag, model_validator

from glassloop.server.http.body_fields import MOST_MESSAGES, MOST_PARTS, Name, check_type, many, text_or
from glassloop.server.http.errors import invalid
from glassloop.server.openai.conversation import Message, TextPart
from glassloop.server.sampling_options import Body

_READ = ("text", "tool_use", "tool_result", "thinking", "redacted_thinking")
_TEXT_ONLY = 'the model reads text only; send {"type": "text", "text": "…"}'
_ERROR = "Error: "  # before the result of a tool that failed, as templates have no other place for that


class Block(Body):
    """A part of a message. `cache_control` is ignored: prefixes are always cached."""

    cache_control: dict[str, Any] | None = None


class TextBlock(Block):
    type: Literal["text"]
    text: str
    citations: many(Any, MOST_PARTS) | None = None  # type: ignore[valid-type]

    @model_validator(mode="before")
    @classmethod
    def _is_known(cls, value: Any) -> Any:
        return check_type(value, _READ, _TEXT_ONLY)


class ToolUseBlock(Block):
    type: Literal["tool_use"]
    id: Name
    name: Name
    input: dict[str, Any]
    caller: dict[str, Any] | None = None


class ToolResultBlock(Block):
    type: Literal["tool_result"]
    tool_use_id: Name
    content: text_or(many(TextBlock, MOST_PARTS)) | None = None  # type: ignore[valid-type]
    is_error: bool | None = None


class ThinkingBlock(Block):
    type: Literal["thinking"]
    thinking: str
    signature: str | None = None  # of no use here: the text itself is sent back


class RedactedThinkingBlock(Block):
    """What another model has thought, encrypted. It is ignored."""

    type: Literal["redacted_thinking"]
    data: str


def _kind_of_block(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return {
        "tool_use": "Use",
        "tool_result": "Result",
        "thinking": "Thinking",
        "redacted_thinking": "Redacted",
    }.get(kind if isinstance(kind, str) else "", "Text")


ContentBlock = Annotated[
    Annotated[TextBlock, Tag("Text")]
    | Annotated[ToolUseBlock, Tag("Use")]
    | Annotated[ToolResultBlock, Tag("Result")]
    | Annotated[ThinkingBlock, Tag("Thinking")]
    | Annotated[RedactedThinkingBlock, Tag("Redacted")],
    Discriminator(_kind_of_block),
]


class BlockMessage(Body):
    role: Literal["user", "assistant", "system"]
    content: text_or(many(ContentBlock, MOST_PARTS))  # type: ignore[valid-type]


BlockMessages = many(BlockMessage, MOST_MESSAGES, least=1)
SystemText = text_or(many(TextBlock, MOST_PARTS))


def as_chat(messages: Sequence[BlockMessage], system: str | Sequence[TextBlock] | None) -> list[Message]:
    """Returns a conversation in OpenAI's form. The results of tools are messages of their own, before what
    else the user says with them."""
    chat: list[Message] = []
    if system:
        content = system if isinstance(system, str) else _parts(system)
        chat.append(Message(role="system", content=content))
    for place, message in enumerate(messages):
        if isinstance(message.content, str):
            chat.append(Message(role=message.role, content=message.content))
        elif message.role == "assistant":
            chat.append(_answer(message.content, place))
        else:
            chat += _question(message.role, message.content, place)
    return chat


def _answer(blocks: Sequence[Block], place: int) -> Message:
    """Returns a message by the assistant: its thoughts, its text and its calls."""
    _check_kinds(blocks, place, "assistant", (TextBlock, ToolUseBlock, ThinkingBlock, RedactedThinkingBlock))
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    texts = [block for block in blocks if isinstance(block, TextBlock)]
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)},
        }
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    return Message(
        role="assistant",
        content="".join(block.text for block in texts) if texts or not calls else None,
        reasoning_content="\n".join(thoughts) if thoughts else None,
        tool_calls=calls or None,
    )


def _question(role: Literal["user", "system"], blocks: Sequence[Block], place: int) -> list[Message]:
    """Returns what a message by the user says: the results of tools, and then its text."""
    _check_kinds(blocks, place, role, (TextBlock, ToolResultBlock) if role == "user" else (TextBlock,))
    results = [
        Message(role="tool", tool_call_id=block.tool_use_id, content=_result(block))
        for block in blocks
        if isinstance(block, ToolResultBlock)
    ]
    texts = [block for block in blocks if isinstance(block, TextBlock)]
    return [*results, Message(role=role, content=_parts(texts))] if texts or not results else results


def _result(block: ToolResultBlock) -> str:
    content = block.content or ""
    text = content if isinstance(content, str) else "\n".join(part.text for part in content)
    return _ERROR + text if block.is_error else text


def _parts(blocks: Iterable[TextBlock]) -> list[TextPart]:
    return [TextPart(type="text", text=block.text) for block in blocks]


def _check_kinds(blocks: Sequence[Block], place: int, role: str, kinds: tuple[type[Block], ...]) -> None:
    for number, block in enumerate(blocks):
        if not isinstance(block, kinds):
            field = f"messages[{place}].content[{number}]"
            names = " or ".join(kind.model_fields["type"].annotation.__args__[0] for kind in kinds)  # type: ignore[union-attr]
            kind = getattr(block, "type", "")
            raise invalid(field, f"{field} is {kind} in a message by the {role}; {names} is expected")
