"""Types of body fields that bound what they take: lists have a greatest length and end at their first error."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

MOST_IDS = 1_000_000  # token ids in one list
MOST_PROMPTS = 1024  # texts, or lists of ids, in one list
MOST_MESSAGES = 10_000
MOST_PARTS = 10_000  # of one message
MOST_TOOLS = 128


def many(item: Any, most: int, least: int = 0) -> Any:
    """A list of at most so many, validated until the first error."""
    return Annotated[list[item], Field(min_length=least, max_length=most, fail_fast=True)]


Ids = many(int, MOST_IDS)
Name = Annotated[str, Field(max_length=1000)]


def _kind_of_prompt(value: Any) -> str:
    """Which of a prompt's forms this is, so that a wrong item is an error of that form alone."""
    if not isinstance(value, list):
        return "Text"
    first = value[0] if value else 0
    return "Texts" if isinstance(first, str) else "Lists" if isinstance(first, list) else "Ids"


# One prompt, as text or token ids, or a list of prompts.
Prompts = Annotated[
    Annotated[str, Tag("Text")]
    | Annotated[many(str, MOST_PROMPTS), Tag("Texts")]
    | Annotated[Ids, Tag("Ids")]
    | Annotated[many(Ids, MOST_PROMPTS), Tag("Lists")],
    Discriminator(_kind_of_prompt),
]


def _is_list(value: Any) -> str:
    return "List" if isinstance(value, list) else "Text"


def text_or(items: Any) -> Any:
    """A text, or a list of the given type."""
    return Annotated[Annotated[str, Tag("Text")] | Annotated[items, Tag("List")], Discriminator(_is_list)]

