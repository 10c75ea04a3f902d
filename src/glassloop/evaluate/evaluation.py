"""One evaluation from its options to its figures, for `glassloop eval` and `python -m glassloop.evaluate`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassloop.decode.sampling import Sampling
from glassloop.evaluate.methods import parse_methods
from glassloop.evaluate.progress import progress
from glassloop.evaluate.record import Record
from glassloop.evaluate.report import Figures, figures_of
from glassloop.evaluate.run import Settings, outcomes_of, rows_of, run_methods
from glassloop.evaluate.task import Task, TaskError

if TYPE_CHECKING:
    from glassloop.engine.llm import LLM


@dataclass(frozen=True)
class Evaluation:
    """What to evaluate. `sampling` are options of `Sampling` for the paths of all methods; `record` is the
    file that is continued, and None keeps nothing."""

    task: Task
    methods: str = "greedy"
    limit: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    seed: int = 0
    budget: Mapping[str, Any] = field(default_factory=dict)  # of each item: tokens, seconds, branches
    record: Path | None = None


def evaluate(llm: LLM, wanted: Evaluation) -> Figures:
    """Runs an evaluation, or what is missing of it in its record, and returns its figures."""
    task = wanted.task
    if wanted.limit is not None and wanted.limit < 1:
        raise TaskError.about("limit", f"is {wanted.limit}; a number of items from 1 up is expected")
    items = task.items[: wanted.limit]
    methods = parse_methods([wanted.methods])
    options = {**task.options, **wanted.sampling, "stop": list(task.stop)}
    sampling = Sampling.from_dict({**options, "max_tokens": wanted.max_tokens or task.max_tokens})
    limits = {name: value for name, value in wanted.budget.items() if value is not None}
    settings = Settings(sampling, wanted.seed, limits or None)
    with tempfile.TemporaryDirectory(prefix="glassloop-eval-") as folder:
        path = wanted.record or Path(folder) / "record.jsonl"
        with Record(path, settings.header(task, llm)) as record:
            ids, texts = {item.id for item in items}, {method.text for method in methods}
            done = sum(row["item"] in ids and row["method"] in texts for row in record.rows)
            with progress(len(items) * len(methods), done) as told:
                run_methods(llm, task, items, methods, settings, record, told)
            results = outcomes_of(record, items, [method.text for method in methods])
            rows = rows_of(record, results)
    return figures_of(task.name, str(record.header["model"]), rows, results)
