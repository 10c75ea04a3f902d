"""The conversation that a run's prompt was rendered from, as it is recorded, and the titles of runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from glassloop.errors import TraceError
from glassloop.record.format.check_header import check_messages
from glassloop.util.shown import cut

Message = dict[str, Any]
MOST_TITLE = 120  # characters
NO_TEXT = "(no text)"  # the title of a prompt that is white space
_READ = 2000  # characters of a text that a title is made of


def recorded(messages: Sequence[Mapping[str, Any]]) -> list[Message] | None:
    """Returns a copy of a conversation as JSON has it, or None if a `.glass` file cannot hold it: it is not
    JSON, has other shapes than chat templates take, or is too large."""
    try:
        plain = json.loads(json.dumps([dict(message) for message in messages], allow_nan=False))
        return check_messages("messages", plain)
    except (TraceError, TypeError, ValueError, RecursionError):
        return None


def text_of(message: Message) -> str:
    """Returns the text of a message. Its content is a text, a list of parts, or None."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return content or ""


def title_of_messages(messages: Sequence[Message]) -> str:
    """Returns the last text of the user in one line, or of any role if the user has none."""
    of_user = [message for message in messages if message["role"] == "user"]
    for message in (*reversed(of_user), *reversed(messages)):
        if title := title_of_text(text_of(message)):
            return title
    return ""


def title_of_text(text: str) -> str:
    """Returns the beginning of a text in one line."""
    line = " ".join(text[:_READ].split())
    return cut(line if len(text) <= _READ else line + " …", MOST_TITLE)


class TokenDecoder(Protocol):
    """A tokenizer, or a model that has one."""

    def decode(self, token_ids: Sequence[int]) -> str: ...


def title_of_ids(decoder: TokenDecoder, token_ids: Sequence[int]) -> str | None:
    """Returns the beginning of a prompt that was given as token ids, or None if it has no text."""
    return title_of_text(decoder.decode(token_ids[: MOST_TITLE + 1])) or None
