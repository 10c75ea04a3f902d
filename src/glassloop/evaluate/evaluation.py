"""One evaluation from its options to its figures, for `glassloop eval` and `python -m glassloop.evaluate`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassloop.decode.sampling import Sampling
from glassloop.evaluate.choices import METHODS as CHOICE_METHODS
from glassloop.evaluate.choices import check_methods, run_choices
from glassloop.evaluate.evaluation_task import EvaluationTask, TaskError
from glassloop.evaluate.item_progress import ItemProgress
from glassloop.evaluate.method_spec import MethodSpec, parse_methods
from glassloop.evaluate.record import Record
from glassloop.evaluate.report import Figures, figures_of
from glassloop.evaluate.run_methods import EvaluationSettings, outcomes_of, rows_of, run_methods
from glassloop.search.budget import Budget
from glassloop.search.methods import make_method
from glassloop.search.solve import TEMPERATURE

if TYPE_CHECKING:
    from glassloop.api.llm import LLM


@dataclass(frozen=True)
class Evaluation:
    """What to evaluate. `sampling` are options of `Sampling` for the paths of all methods; `record` is the
    file that is continued, and None keeps nothing."""

    task: EvaluationTask
    methods: str = "greedy"
    limit: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    seed: int = 0
    budget: Mapping[str, Any] = field(default_factory=dict)  # of each item: tokens, seconds, branches
    record: Path | None = None

    @property
    def specs(self) -> list[MethodSpec]:
        """The methods. Those of a task of choices are its own, unless they are named."""
        if self.task.is_choice and self.methods == "greedy":
            return parse_methods(CHOICE_METHODS)
        return parse_methods([self.methods])

    @property
    def settings(self) -> EvaluationSettings:
        """The options of all methods. The temperature is that of a search if none is given."""
        task = self.task
        options = {"temperature": TEMPERATURE, **task.options, **self.sampling, "stop": list(task.stop)}
        sampling = Sampling.from_dict({**options, "max_tokens": self.max_tokens or task.max_tokens})
        limits = {name: value for name, value in self.budget.items() if value is not None}
        return EvaluationSettings(sampling, self.seed, Budget.of(limits).to_dict() or None)

    def check(self) -> None:
        """Raises GlassloopError for what is wrong, before a model is loaded."""
        if self.limit is not None and self.limit < 1:
            raise TaskError.about("limit", f"is {self.limit}; a number of items from 1 up is expected")
        self.task.check()
        if self.task.is_choice:
            check_methods(self.specs)
            return
        for method in self.specs:
            built_method = make_method(method.name, dict(method.options))
            if built_method.needs_verifier and any(item.verify is None for item in self.task.items):
                problem = f"is {method.text}, which needs a verifier; {self.task.name} has answers instead"
                raise TaskError.about("method", problem)
        _ = self.settings


def evaluate(llm: LLM, wanted: Evaluation) -> Figures:
    """Runs an evaluation, or what is missing of it in its record, and returns its figures."""
    wanted.check()
    task, methods, settings = wanted.task, wanted.specs, wanted.settings
    items = task.items[: wanted.limit]
    with tempfile.TemporaryDirectory(prefix="glassloop-eval-") as folder:
        path = wanted.record or Path(folder) / "record.jsonl"
        with Record(path, settings.header(task, llm)) as record:
            ids, texts = {item.id for item in items}, {method.text for method in methods}
            done = sum(row["item"] in ids and row["method"] in texts for row in record.rows)
            with ItemProgress(len(items) * len(methods), done) as progress:
                if task.is_choice:
                    run_choices(llm, task, items, methods, record, progress)
                else:
                    run_methods(llm, task, items, methods, settings, record, progress)
            results = outcomes_of(record, items, [method.text for method in methods])
            rows = rows_of(record, results)
    return figures_of(task.name, str(record.header["model"]), rows, results, task.groups)
