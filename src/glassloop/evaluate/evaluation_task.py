"""A task: items with known answers, and how an answer is found in a text and judged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from glassloop.errors import GlassloopError
from glassloop.search.extract import find_extractor
from glassloop.search.verdict import Extractor, Verifier, verdict_of

Messages = Sequence[Mapping[str, Any]]


class TaskError(GlassloopError):
    """A task file or an item that cannot be used."""


@dataclass(frozen=True)
class TaskItem:
    """One question. `answer` is compared with the extracted value; `verify`, if given, judges the whole text
    instead; `choices` are texts whose likelihoods are compared."""

    id: str
    question: str | Messages
    answer: str | None = None
    choices: tuple[str, ...] = ()
    verify: Verifier | None = None
    group: str = ""  # the part of the task that it belongs to, for accuracies by part
    extract: str | Extractor | None = None  # in place of the task's


@dataclass(frozen=True)
class EvaluationTask:
    """Items, and what they share: the extractor, the limits of an answer, and whether questions are chats."""

    name: str
    items: tuple[TaskItem, ...]
    extract: str | Extractor | None = "auto"
    max_tokens: int = 512
    stop: tuple[str, ...] = ()
    chat: bool | None = None  # None: if the model has a chat template
    options: Mapping[str, Any] = field(default_factory=dict)  # other options of `Sampling`
    delimiter: str = " "  # between a question and a choice

    def __post_init__(self) -> None:
        if not self.items:
            raise TaskError.about("task", f"{self.name} has no items; at least one is expected")
        ids: set[str] = set()
        for item in self.items:
            if self.is_choice != bool(item.choices):
                problem = f"are missing in item {item.id}; either all items of a task have choices, or none"
                raise TaskError.about("choices", problem)
            if item.id in ids:
                raise TaskError.about("id", f"{item.id} occurs twice; every item is expected to have its own")
            ids.add(item.id)

    @property
    def is_choice(self) -> bool:
        """Whether the likelihoods of choices are compared, so that nothing is generated."""
        return bool(self.items[0].choices)

    @property
    def digest(self) -> str:
        """A hash of all questions and answers; a record has it to recognise its task."""
        parts = [[item.id, item.question, item.answer, item.choices] for item in self.items]
        data = json.dumps(parts, sort_keys=True, default=str).encode()
        return hashlib.sha256(data).hexdigest()[:16]

    @property
    def groups(self) -> dict[str, str]:
        """The part of the task that each item belongs to, by the id of the item."""
        return {item.id: item.group for item in self.items}

    def extracting(self, extract: str | Extractor) -> EvaluationTask:
        """Returns the task with another extractor, for all of its items."""
        items = tuple(replace(item, extract=None) for item in self.items)
        return replace(self, items=items, extract=extract)

    def check(self) -> None:
        """Raises GlassloopError if a verifier cannot work on this machine. It would otherwise count every
        answer as wrong."""
        for item in self.items:
            check = getattr(item.verify, "check", None)
            if check is not None:
                check()

    def value(self, item: TaskItem, text: str) -> str | None:
        """Returns the extracted answer of a text."""
        return find_extractor(item.extract if item.extract is not None else self.extract)(text)

    def correct(self, item: TaskItem, text: str, value: str | None) -> bool:
        """Tells whether a text, or the value that was extracted from it, is right."""
        if item.verify is not None:
            return verdict_of(item.verify, text).passed
        return value is not None and item.answer is not None and value == item.answer
