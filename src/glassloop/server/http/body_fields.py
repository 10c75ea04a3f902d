"""Types of body fields with bounds: lists have a greatest length, and are validated up to the first error."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from glassloop.util.shown import printable

MOST_IDS = 1_000_000  # token ids in one list
MOST_PROMPTS = 1024  # texts, or lists of ids, in one list
MOST_MESSAGES = 10_000
MOST_PARTS = 10_000  # of one message
MOST_TOOLS = 128


def many(item: Any, most: int, least: int = 0) -> Any:
    """Returns the type of a list with at most this many items, validated until the first error."""
    return Annotated[list[item], Field(min_length=least, max_length=most, fail_fast=True)]


def _check_values(values: dict[str, Any]) -> dict[str, Any]:
    """Refuses what is no setting of a chat template: content, which might be a special token, and the names
    of what a template gets in another way."""
    for name, value in values.items():
        is_text = isinstance(value, str) and re.fullmatch(r"[\w .,:+-]{0,100}", value) is not None
        if not re.fullmatch(r"[A-Za-z]\w{0,99}", name) or name in _OWN_VALUES:
            problem = "{name} cannot be set; the template's own settings are expected"
        elif not (value is None or is_text or isinstance(value, (bool, int, float))):
            problem = "{name} is no setting; true, false, a number or a short text is expected"
        else:
            continue
        raise PydanticCustomError("no_setting", problem, {"name": printable(name)})
    return values


_OWN_VALUES = {
    *("messages", "tools", "documents", "bos_token", "eos_token", "add_generation_prompt"),
    *("continue_final", "self"),
}
Ids = Annotated[list[int], Field(max_length=MOST_IDS, fail_fast=True)]
Whole = Annotated[int, Field(ge=0, le=(1 << 31) - 1)]
# Settings of a chat template, by name.
TemplateValues = Annotated[dict[str, Any], Field(max_length=32), AfterValidator(_check_values)]
Name = Annotated[str, Field(max_length=1000)]


def _kind_of_prompt(value: Any) -> str:
    """Returns which form of a prompt this is, so that a wrong item is an error of that form alone."""
    if not isinstance(value, list):
        return "Text"
    first = value[0] if value else 0
    return "Texts" if isinstance(first, str) else "Lists" if isinstance(first, list) else "Ids"


# One prompt, as text or token ids, or a list of prompts.
Prompts = Annotated[
    Annotated[str, Tag("Text")]
    | Annotated[list[str], Field(max_length=MOST_PROMPTS, fail_fast=True), Tag("Texts")]
    | Annotated[Ids, Tag("Ids")]
    | Annotated[list[Ids], Field(max_length=MOST_PROMPTS, fail_fast=True), Tag("Lists")],
    Discriminator(_kind_of_prompt),
]


def _is_list(value: Any) -> str:
    return "List" if isinstance(value, list) else "Text"


def text_or(items: Any) -> Any:
    """Returns the type of a text or a list of the given type."""
    return Annotated[Annotated[str, Tag("Text")] | Annotated[items, Tag("List")], Discriminator(_is_list)]


def word_or(words: Any, item: Any) -> Any:
    """Returns the type of a word or an object of the given type."""
    return Annotated[
        Annotated[words, Tag("Word")] | Annotated[item, Tag("Object")], Discriminator(_is_object)
    ]


def _is_object(value: Any) -> str:
    return "Object" if isinstance(value, (dict, BaseModel)) else "Word"


def check_type(value: Any, read: Collection[str], instead: str) -> Any:
    """Returns an item of a list that has a `type`, and refuses types that are not read: the error says what
    to send instead."""
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in read:
        details = {"kind": printable(kind), "instead": instead}
        raise PydanticCustomError("not_read", "{kind} is not supported: {instead}", details)
    return value


def texts_in(value: Any) -> Iterator[str]:
    """Yields every text in messages or tools, keys of objects included, without recursion."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, BaseModel):
            waiting.extend(each.__dict__.values())
        elif isinstance(each, dict):
            waiting.extend(each)
            waiting.extend(each.values())
        elif isinstance(each, (list, tuple)):
            waiting.extend(each)
