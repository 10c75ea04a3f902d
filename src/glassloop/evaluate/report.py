"""The figures of an evaluation: a row for each method, paired tests, a table as text and a plot as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

from glassloop.util.chart import Chart, Margins
from glassloop.util.statistics import Paired, mcnemar, wilson


class Result(Protocol):
    """What a report needs to know of one item under one method."""

    @property
    def correct(self) -> bool: ...

    @property
    def tokens(self) -> int: ...


@dataclass(frozen=True)
class ReportRow:
    """One method on all items. `tokens` are those of all items together; `seconds` are wall time, in a batch
    with the other items."""

    method: str
    accuracy: float
    low: float  # the 95 % interval of Wilson
    high: float
    items: int
    correct: int
    tokens: int
    tokens_per_item: float
    seconds: float | None


def row_of(method: str, results: Mapping[str, Result], seconds: float | None) -> ReportRow:
    """Returns the figures of a method from its results by item."""
    correct = sum(result.correct for result in results.values())
    tokens = sum(result.tokens for result in results.values())
    interval = wilson(correct, len(results))
    return ReportRow(
        method,
        accuracy=round(interval.share, 6),
        low=round(interval.low, 6),
        high=round(interval.high, 6),
        items=len(results),
        correct=correct,
        tokens=tokens,
        tokens_per_item=round(tokens / max(len(results), 1), 2),
        seconds=None if seconds is None else round(seconds, 3),
    )


def compare(results: Mapping[str, Mapping[str, Result]]) -> list[tuple[str, str, Paired]]:
    """Returns the paired test of every two methods, on the items that both have."""
    names, pairs = list(results), []
    for place, one in enumerate(names):
        for other in names[place + 1 :]:
            shared = [key for key in results[one] if key in results[other]]
            first = [results[one][key].correct for key in shared]
            second = [results[other][key].correct for key in shared]
            pairs.append((one, other, mcnemar(first, second)))
    return pairs


def table(rows: Sequence[ReportRow]) -> str:
    """Returns the rows as plain text."""
    header = ("method", "accuracy", "95 % interval", "items", "tokens/item", "seconds")
    cells = [
        (
            row.method,
            f"{row.accuracy:.1%}",
            f"{row.low:.1%} - {row.high:.1%}",
            str(row.items),
            f"{row.tokens_per_item:.1f}",
            "" if row.seconds is None else f"{row.seconds:.1f}",
        )
        for row in rows
    ]
    return _columns([header, *cells])


def comparisons(pairs: Sequence[tuple[str, str, Paired]]) -> str:
    """Returns the paired tests as plain text."""
    header = ("first", "second", "difference", "only first", "only second", "p (McNemar, exact)")
    cells = [
        (
            one,
            other,
            f"{100 * pair.difference:+.1f} points",
            str(pair.first_only),
            str(pair.second_only),
            f"{pair.p:.2g}",
        )
        for one, other, pair in pairs
    ]
    return _columns([header, *cells])


class ReportPart(NamedTuple):
    """One method on one part of a task."""

    items: int
    correct: int

    @property
    def accuracy(self) -> float:
        return self.correct / self.items if self.items else 0.0


Parts = Mapping[str, Mapping[str, ReportPart]]  # by the name of the part, then by method


def parts_of(results: Mapping[str, Mapping[str, Result]], groups: Mapping[str, str]) -> Parts:
    """Returns the results by part, from the part of each item; none if the task has only one part."""
    names = dict.fromkeys(groups.get(key, "") for by_item in results.values() for key in by_item)
    if len(names) < 2:
        return {}
    parts: dict[str, dict[str, ReportPart]] = {}
    for name in names:
        for method, by_item in results.items():
            right = [result.correct for key, result in by_item.items() if groups.get(key, "") == name]
            parts.setdefault(name, {})[method] = ReportPart(len(right), sum(right))
    return parts


def parts_table(parts: Parts) -> str:
    """Returns the accuracies by part as plain text, a column for each method."""
    methods = list(next(iter(parts.values())))
    cells = []
    for name, by_method in parts.items():
        items = max(part.items for part in by_method.values())
        cells.append((name, str(items), *(f"{by_method[method].accuracy:.1%}" for method in methods)))
    return _columns([("part", "items", *methods), *cells])


def to_json(
    task: str,
    model: str,
    rows: Sequence[ReportRow],
    pairs: Sequence[tuple[str, str, Paired]],
    parts: Parts,
) -> list[dict[str, Any]]:
    """Returns one object for each method, with its figures, its comparison with each method before it, and
    its accuracy on each part of a task that has parts."""
    objects = []
    for row in rows:
        against = [
            {"with": one, "difference": pair.difference, "p": pair.p, "only_this": pair.second_only}
            | {"only_other": pair.first_only}
            for one, other, pair in pairs
            if other == row.method
        ]
        by_part = {
            name: {"accuracy": round(part.accuracy, 6), **part._asdict()}
            for name, by_method in parts.items()
            if (part := by_method.get(row.method)) is not None
        }
        facts = {"task": task, "model": model, **asdict(row), "compared": against}
        objects.append({**facts, "parts": by_part} if by_part else facts)
    return objects


class Figures(NamedTuple):
    """The same figures for people, for programs and as a picture."""

    text: str
    json: list[dict[str, Any]]  # one object for each method
    svg: str


def figures_of(
    task: str,
    model: str,
    rows: Sequence[ReportRow],
    results: Mapping[str, Mapping[str, Result]],
    groups: Mapping[str, str] | None = None,
) -> Figures:
    """Returns the figures of an evaluation from its rows, its results by method and item, and the part of the
    task that each item belongs to, if it has parts."""
    pairs, parts = compare(results), parts_of(results, groups or {})
    items = max((row.items for row in rows), default=0)
    text = f"{task}, {model}, {items} items\n\n{table(rows)}\n"
    if pairs:
        text += f"\n{comparisons(pairs)}\n"
    if parts:
        text += f"\n{parts_table(parts)}\n"
    svg = plot(f"{task}, {model}: accuracy over compute, {items} items", rows)
    return Figures(text, to_json(task, model, rows, pairs, parts), svg)


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = []
    for row in rows:
        first, *rest = [
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join([first, *rest]).rstrip())
    return "\n".join(lines)


# ── the plot ───────────────────────────────────────────────────────────────────────────────────────────────

_COLOURS = ("#2563eb", "#dc2626", "#059669", "#9333ea", "#d97706", "#0891b2", "#be185d", "#4b5563")


def plot(title: str, rows: Sequence[ReportRow]) -> str:
    """Returns an SVG of accuracy over tokens per item, on a logarithmic axis. Rows whose names differ only in
    their number of paths (`vote:4`, `vote:8`) are one line."""
    drawn = [row for row in rows if row.items and row.tokens_per_item > 0]
    lines: dict[str, list[ReportRow]] = {}
    for row in drawn:
        lines.setdefault(row.method.partition(":")[0], []).append(row)
    most = max((row.tokens_per_item for row in drawn), default=10.0) * 1.25
    least = min((row.tokens_per_item for row in drawn), default=1.0) / 1.25
    top = min(1.0, max((row.high for row in drawn), default=1.0) * 1.08)
    percents = {tick / 100: f"{tick} %" for tick in range(0, 101, 10) if tick / 100 <= top}
    chart = Chart(
        (math.log(least), math.log(most)),
        (0, top),
        height=440,
        margins=Margins(left=70, right=30, top=46, bottom=56),
        y_labels=percents,
    )
    chart.text(chart.left, 24, title, "#111", size=15)
    chart.text(chart.width / 2, chart.height - 14, "tokens per item", "#444", anchor="middle")
    chart.text(16, chart.height / 2, "accuracy", "#444", anchor="middle", upwards=True)
    for power in range(math.floor(math.log2(least)), math.ceil(math.log2(most)) + 1):
        tokens = 2.0**power
        if least <= tokens <= most:
            at = chart.x(math.log(tokens))
            chart.polyline([(at, chart.top), (at, chart.bottom)], "#f3f4f6", width=1)
            chart.text(at, chart.bottom + 18, f"{tokens:,.0f}", "#444", anchor="middle")
    for number, (name, members) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        members = sorted(members, key=lambda row: row.tokens_per_item)
        places = [math.log(row.tokens_per_item) for row in members]
        chart.line([(at, row.accuracy) for at, row in zip(places, members, strict=True)], colour, width=2)
        for at, row in zip(places, members, strict=True):
            chart.line([(at, row.low), (at, row.high)], colour, width=1, opacity=0.35)
            facts = f"{row.method}: {row.accuracy:.1%} with {row.tokens_per_item:,.0f} tokens"
            chart.dot(at, row.accuracy, colour, title=facts)
        y = chart.top + 8 + 17 * number
        chart.circle(chart.left + 14, y - 4, 4, colour)
        chart.text(chart.left + 24, y, name, "#111")
    return str(chart)
