"""Multiple choice: the choice that the model finds most likely after the question.

`likelihood` compares the log-probabilities of the choices, `likelihood_norm` those divided by the number of
bytes of the choice, as lm-evaluation-harness does for `acc` and `acc_norm`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glassloop.evaluate.evaluation_task import EvaluationTask, TaskError, TaskItem
from glassloop.evaluate.item_progress import ItemProgress
from glassloop.evaluate.method_spec import MethodSpec
from glassloop.evaluate.record import Record
from glassloop.search.verify.likelihood import Scored, encode_pair, score_each

if TYPE_CHECKING:
    from glassloop.api.llm import LLM

METHODS = ("likelihood", "likelihood_norm")
_AT_ONCE = 64  # items whose choices are one batch


def check_methods(methods: Sequence[MethodSpec]) -> None:
    """Raises for a method that does not compare choices."""
    for method in methods:
        if method.text not in METHODS:
            method_names = " and ".join(METHODS)
            raise TaskError.about("method", f"is {method.text}; a task of choices has {method_names}")


def run_choices(
    llm: LLM,
    task: EvaluationTask,
    items: Sequence[TaskItem],
    methods: Sequence[MethodSpec],
    record: Record,
    progress: ItemProgress,
) -> None:
    """Scores the choices of each item that the record does not have, and records what each method chooses."""
    have = {(row["item"], row["method"]) for row in record.rows}
    missing = [item for item in items if any((item.id, each.text) not in have for each in methods)]
    record.begin()
    progress.begin_method(", ".join(method.text for method in methods))
    for first in range(0, len(missing), _AT_ONCE):
        batch = missing[first : first + _AT_ONCE]
        pairs = [pair for item in batch for pair in _pairs(llm, task, item)]
        scores = score_each(llm, pairs)
        for item in batch:
            mine, scores = scores[: len(item.choices)], scores[len(item.choices) :]
            tokens = sum(len(pair[1]) for pair in pairs[: len(item.choices)])
            pairs = pairs[len(item.choices) :]
            for method in methods:
                if (item.id, method.text) not in have:
                    record.add(_row(item, method.text, mine, tokens))
                    progress.finish_item(tokens)


def _pairs(llm: LLM, task: EvaluationTask, item: TaskItem) -> list[Scored]:
    if isinstance(item.question, str) and not task.chat:
        return [encode_pair(llm, item.question, task.delimiter + choice) for choice in item.choices]
    messages = (
        [{"role": "user", "content": item.question}] if isinstance(item.question, str) else item.question
    )
    context = llm.tokenizer.encode_chat(messages)
    encode = llm.tokenizer.encode
    return [(context, encode(choice, add_special=False, parse_special=False)) for choice in item.choices]


def _row(item: TaskItem, method: str, scores: Sequence[float], tokens: int) -> dict[str, Any]:
    lengths = [max(1, len(choice.encode())) for choice in item.choices]
    compared = [
        score / length if method == "likelihood_norm" else score
        for score, length in zip(scores, lengths, strict=True)
    ]
    best = max(range(len(compared)), key=compared.__getitem__)
    return {
        "item": item.id,
        "method": method,
        "value": str(best),
        "correct": str(best) == item.answer,
        "tokens": tokens,
        "paths": len(compared),
        "seconds": 0.0,
        "scores": [round(score, 4) for score in scores],
    }
