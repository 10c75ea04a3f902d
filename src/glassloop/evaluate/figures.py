"""The figures of recorded samples: what each method reaches, with its cost, as text, JSON and a plot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from glassloop.evaluate.analyse import ItemOutcome, Samples
from glassloop.evaluate.evaluation_task import EvaluationTask
from glassloop.evaluate.method_spec import parse_methods
from glassloop.evaluate.record import RecordError, read, read_parts, seconds_of
from glassloop.evaluate.report import Figures, ReportRow, figures_of, row_of
from glassloop.evaluate.samples import GREEDY, SAMPLES


def figures_of_samples(
    task: EvaluationTask, paths: Sequence[Path], methods: str, beside: Sequence[Path] = ()
) -> Figures:
    """Returns the figures of methods on the samples of a record, which may be in parts, and of the greedy
    answers or the methods of other records, on the items that all of them have."""
    header, rows = read_parts(paths)
    samples = Samples.of(task, header, rows)
    model = str(header["model"])
    outcomes: dict[str, Mapping[str, ItemOutcome]] = {}
    seconds: dict[str, float | None] = {}
    for method in parse_methods([methods]):
        results = samples.outcomes(method)
        outcomes[method.text] = results
        seconds[method.text] = _seconds(samples, method.name, results)
    for other in beside:
        other_header, other_rows = read(other)
        if other_header.get("what") == "methods":
            for name, results, spent in _of_methods(task, other_header, other_rows):
                outcomes[name], seconds[name] = results, spent
            continue
        others = Samples.of(task, other_header, other_rows)
        (greedy,) = parse_methods([GREEDY])
        name = f"{other_header['model']} greedy"
        outcomes[name] = others.outcomes(greedy)
        seconds[name] = _seconds(others, GREEDY, outcomes[name])
    shared = set.intersection(*(set(results) for results in outcomes.values()))
    kept = {
        name: {key: result for key, result in results.items() if key in shared}
        for name, results in outcomes.items()
    }
    report_rows = [_row(name, kept[name], outcomes[name], seconds[name]) for name in kept]
    return figures_of(task.name, model, report_rows, kept, task.groups)


def _of_methods(
    task: EvaluationTask, header: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, dict[str, ItemOutcome], float]]:
    """Yields the name, the results and the seconds of each method in a record of `run`."""
    if header.get("digest") != task.digest:
        raise RecordError(f"the record is of another task or data file than {task.name}")
    for method in dict.fromkeys(row["method"] for row in rows):
        method_rows = [dict(row) for row in rows if row["method"] == method]
        results = {
            row["item"]: ItemOutcome(row["correct"], row["tokens"], row["value"], row["paths"])
            for row in method_rows
        }
        yield f"{header['model']} {method}", results, seconds_of(method_rows)


def _row(
    name: str, kept: Mapping[str, ItemOutcome], all_items: Mapping[str, ItemOutcome], seconds: float | None
) -> ReportRow:
    share = len(kept) / max(len(all_items), 1)
    return row_of(name, kept, None if seconds is None else seconds * share)


def _seconds(samples: Samples, method: str, results: Mapping[str, ItemOutcome]) -> float | None:
    """Returns the wall time of drawing what a method used: its share of the tokens of the batch."""
    if method == GREEDY:
        return samples.seconds[GREEDY] or None
    drawn = sum(run.tokens for key in samples.ids for run in samples.samples[key])
    used = sum(outcome.tokens for outcome in results.values())
    return samples.seconds[SAMPLES] * used / drawn if drawn else None
