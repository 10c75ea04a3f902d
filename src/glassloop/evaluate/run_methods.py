"""Runs methods on a task with the model, and records each finished item, so that a run can be continued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from glassloop.decode.luck import list_seed
from glassloop.decode.sampling import Sampling
from glassloop.engine.request_maker import adapters_of
from glassloop.evaluate.analyse import ItemOutcome
from glassloop.evaluate.evaluation_task import EvaluationTask, TaskItem
from glassloop.evaluate.item_progress import ItemProgress
from glassloop.evaluate.method_spec import MethodSpec
from glassloop.evaluate.record import Record, seconds_of
from glassloop.evaluate.report import ReportRow, row_of
from glassloop.search.solution import Solution
from glassloop.search.solve import drive_all, prepare

if TYPE_CHECKING:
    from glassloop.api.llm import LLM
    from glassloop.search.running import Running


@dataclass(frozen=True)
class EvaluationSettings:
    """What all methods of an evaluation share."""

    sampling: Sampling
    seed: int = 0
    budget: Mapping[str, Any] | None = None  # of each item: tokens, seconds, branches

    def header(self, task: EvaluationTask, llm: LLM) -> dict[str, Any]:
        """Returns the header of the record. Methods and the number of items are not in it: both may be
        added to."""
        adapters = adapters_of(llm, self.sampling)
        return {
            "what": "methods",
            "task": task.name,
            "digest": task.digest,
            "extract": task.extract if isinstance(task.extract, str) else None,
            "model": llm.name.rpartition("/")[2].removesuffix(".gguf"),
            "hash": llm.model_hash,
            "ops": llm.ops,
            "seed": self.seed,
            "sampling": self.sampling.to_dict(),
            "budget": dict(self.budget or {}),
            **({"adapters": adapters} if adapters else {}),
        }


def run_methods(
    llm: LLM,
    task: EvaluationTask,
    items: Sequence[TaskItem],
    methods: Sequence[MethodSpec],
    settings: EvaluationSettings,
    record: Record,
    progress: ItemProgress,
) -> None:
    """Runs what the record does not have yet, and shows its progress."""
    places = {item.id: place for place, item in enumerate(task.items)}
    for method in methods:
        have = {row["item"] for row in record.rows if row["method"] == method.text}
        missing = [item for item in items if item.id not in have]
        if not missing:
            continue
        record.begin()
        progress.begin_method(method.text)

        def make(number: int, missing: list[TaskItem] = missing, method: MethodSpec = method) -> Running:
            item = missing[number]
            # The seed belongs to the item, so it is the same after a restart and for every method.
            sampling = replace(settings.sampling, seed=list_seed(settings.seed, places[item.id]))
            return prepare(
                llm,
                item.question,
                method.name,
                extract=partial(task.value, item),
                verify=item.verify,
                sampling=sampling,
                budget=None if settings.budget is None else dict(settings.budget),
                chat=task.chat,
                **dict(method.options),
            )

        window = max(2, 2 * llm.engine.loop.scheduler.most_running // (method.n or 1))
        for solution in drive_all(llm, make, len(missing), window):
            row = _row(task, missing[solution.index], method, solution)
            record.add(row)
            progress.finish_item(row["tokens"])


def _row(task: EvaluationTask, item: TaskItem, method: MethodSpec, solution: Solution) -> dict[str, Any]:
    return {
        "item": item.id,
        "method": method.text,
        "value": solution.value,
        "correct": task.correct(item, solution.text, solution.value),
        "tokens": solution.usage.tokens,
        "paths": solution.usage.branches,
        "seconds": round(solution.usage.seconds, 3),
        "text": solution.text,
    }


def outcomes_of(
    record: Record, items: Sequence[TaskItem], methods: Sequence[str]
) -> dict[str, dict[str, ItemOutcome]]:
    """Returns the results in a record, by method and item, in the order of the items."""
    outcomes: dict[str, dict[str, ItemOutcome]] = {}
    for method in methods:
        by_item = {row["item"]: row for row in record.rows if row["method"] == method}
        rows = [by_item[item.id] for item in items if item.id in by_item]
        outcomes[method] = {
            row["item"]: ItemOutcome(row["correct"], row["tokens"], row["value"], row["paths"])
            for row in rows
        }
    return outcomes


def rows_of(record: Record, outcomes: Mapping[str, Mapping[str, ItemOutcome]]) -> list[ReportRow]:
    """Returns the figures of each method."""
    report_rows = []
    for method, results in outcomes.items():
        method_rows = [row for row in record.rows if row["method"] == method and row["item"] in results]
        report_rows.append(row_of(method, results, seconds_of(method_rows)))
    return report_rows
