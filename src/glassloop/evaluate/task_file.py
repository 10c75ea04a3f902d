"""Task files: JSON lines with a prompt and an answer, or a YAML file in the form of lm-evaluation-harness.

A line of a JSONL file has `prompt` (or `question`, or `messages`) and `answer`, or `tests` in its place; it
may have `id`, `choices` and `group`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassloop.errors import GlassloopError
from glassloop.evaluate.builtin import rows
from glassloop.evaluate.evaluation_task import EvaluationTask, TaskError, TaskItem
from glassloop.search.extract import find_extractor
from glassloop.search.verify.unit_tests import unit_tests
from glassloop.util.check import TEXT, ValueRule, require
from glassloop.util.shown import shown

_FIELDS = ("id", "prompt", "question", "messages", "answer", "choices", "tests", "group")
_ANSWER = ValueRule(
    "a text or a number", lambda it: isinstance(it, (str, int, float)) and not isinstance(it, bool)
)
_CHOICES = ValueRule(
    "a list of texts", lambda it: isinstance(it, list) and all(isinstance(each, str) for each in it)
)


def read_task(path: Path, *, data: Path | None = None, extract: str | None = None) -> EvaluationTask:
    """Returns the task of a file. `extract` names the extractor of a JSONL task; `data` is the data file of a
    YAML task."""
    if path.suffix in (".yaml", ".yml"):
        from glassloop.evaluate.harness import read_harness_task

        return read_harness_task(path, data)
    extractor = find_extractor(extract)
    items = []
    for index, row in enumerate(rows(path)):
        try:
            items.append(_item(index, row, extractor))
        except GlassloopError as error:
            raise TaskError(f"{path}, item {index + 1}: {error}", field=error.field) from None
    return EvaluationTask(path.stem, tuple(items), extract or "auto")


def _item(index: int, row: Mapping[str, Any], extractor: Any) -> TaskItem:
    for name in row:
        if name not in _FIELDS:
            raise TaskError.about(name, f"is not a field of a task; {', '.join(_FIELDS)} are expected")
    group = row.get("group", "")
    require("group", group, TEXT, TaskError)
    if "tests" in row:
        if "answer" in row or "choices" in row:
            raise TaskError.about("tests", "is given beside answer or choices; one of them is expected")
        verify = unit_tests(row["tests"])
        return TaskItem(str(row.get("id", index)), _question(row), verify=verify, group=group, extract="text")
    answer: Any = row.get("answer")
    choices = row.get("choices", [])
    require("answer", answer, _ANSWER, TaskError)
    require("choices", choices, _CHOICES, TaskError)
    if choices:
        right_answer = _letter_or_choice(answer, choices)
    else:
        right_answer = extractor(str(answer)) or str(answer)  # so that "$1,000" and "1000" are the same
    return TaskItem(str(row.get("id", index)), _question(row), right_answer, tuple(choices), group=group)


def _letter_or_choice(answer: str | float, choices: list[str]) -> str:
    """Returns the number of the right choice, which is given as its text, its letter or its number."""
    if isinstance(answer, str) and answer in choices:
        return str(choices.index(answer))
    if isinstance(answer, str) and len(answer) == 1 and 0 <= ord(answer.upper()) - ord("A") < len(choices):
        return str(ord(answer.upper()) - ord("A"))
    if isinstance(answer, int) and 0 <= answer < len(choices):
        return str(answer)
    raise TaskError.about(
        "answer", f"is {shown(answer)}; one of the choices, its letter or number is expected"
    )


def _question(row: Mapping[str, Any]) -> str | list[dict[str, Any]]:
    prompt, messages = row.get("prompt", row.get("question")), row.get("messages")
    if "prompt" in row and "question" in row:
        raise TaskError.about("question", "is given beside prompt; one of them is expected")
    if isinstance(prompt, str) and messages is None:
        return prompt
    if prompt is None and isinstance(messages, list) and messages:
        if all(isinstance(message, dict) for message in messages):
            return messages
        raise TaskError.about("messages", f"is {shown(messages)}; a list of objects is expected")
    raise TaskError.about("prompt", f"is {shown(prompt)}; a text, or messages in its place, is expected")
