"""Formats measurements as a table of at most 100 columns and as plain data. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.catalog import LLAMA, OURS
from bench.rounds import Measured
from bench.statistics import Summary, ratio, summarize
from bench.targets import TARGETS
from bench.workloads import WORKLOADS

WIDTH = 100
_TITLE, _CELL, _RATIO = 28, 13, 8
_GROUPS = (
    ("tokens/s", "tokens a second (more is better)"),
    ("ms", "milliseconds (less is better)"),
    ("MB", "megabytes (less is better)"),
)
_BUSY = "\nThe machine was busy with other work: engines that wait by spinning suffer most. Not a fair run."


def report(machine: dict[str, Any], runs: Sequence[Measured], default_model: str) -> str:
    parts = [machine_lines(machine)]
    for run in runs:
        parts += [model_table(run, machine["threads"])]
        if run.model == default_model and not machine.get("isa"):  # the targets are for unrestricted engines
            parts += [target_lines(run)]
        if run.accuracy is not None:
            parts += [accuracy_table(run.accuracy)]
    return "\n\n".join(part for part in parts if part)


def machine_lines(machine: dict[str, Any]) -> str:
    return (
        f"{machine['processor']}, {machine['threads']} threads, {machine['memory_gb']} GB"
        f" · {machine['system']} · Python {machine['python']}\n"
        f"{machine['date']} · load before the run {machine['load_before']:.1f}"
        + (f" · engines held to {machine['isa']}, where they can be" if machine.get("isa") else "")
        + (_BUSY if machine["load_before"] > 0.5 else "")
        + ("\nStopped before its end." if machine.get("stopped") else "")
    )


def model_table(run: Measured, threads: int) -> str:
    names = [name for name in run.said if any(name in row for row in run.samples.values())]
    rule = "─" * WIDTH
    head = f"{'':{_TITLE}}" + "".join(f"{name:>{_CELL}}" for name in names)
    head += f"{'/ best':>{_RATIO}}{'/ ' + LLAMA.name:>{_RATIO + 4}}"
    lines = [
        f"{run.model} ({run.file}, {run.bytes_per_token / 1e6:.0f} MB of weights a token)",
        f"{counted(run)}; a cell is the median ± half of the middle half",
        rule,
        head,
        f"{'instruction set':{_TITLE}}"
        + "".join(f"{run.said[name].get('isa') or '—':>{_CELL}}" for name in names),
    ]
    for unit, title in _GROUPS:
        rows = [w for w in WORKLOADS.values() if w.unit == unit and w.name in run.samples]
        lines += [title] if rows else []
        for workload in rows:
            samples = run.samples[workload.name]
            cells = "".join(f"{cell(summarize(samples.get(name, []))):>{_CELL}}" for name in names)
            against = ratios(samples, workload.more_is_better)
            last = f"{times(against.get('best')):>{_RATIO}}{times(against.get(LLAMA.name)):>{_RATIO + 4}}"
            lines.append(f"  {workload.title:{_TITLE - 2}}{cells}{last}")
    lines += [rule, *bandwidth_lines(run, names, threads)]
    lines += [f"{name} {said['version']}: {said['details']}" for name, said in run.said.items()]
    lines += [f"— {what}: {why}" for what, why in run.absent.items() if why != "has no such ability"]
    return "\n".join(shorten(line) for line in lines)


def counted(run: Measured) -> str:
    """Returns the number of rounds behind the cells, as text: fewer than requested if the run was stopped."""
    counts = {len(values) for row in run.samples.values() for values in row.values()}
    least, most = min(counts, default=0), max(counts, default=0)
    return f"{most} rounds" if least == most else f"{least} to {most} rounds"


def cell(summary: Summary | None) -> str:
    if summary is None:
        return "—"
    number = f"{summary.median:,.0f}" if summary.median >= 100 else f"{summary.median:.1f}"
    return number if summary.count < 2 else f"{number} ±{summary.spread:.0%}"


def times(value: float | None) -> str:
    return "—" if value is None else f"{value:.2f}×"


def shorten(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def ratios(samples: dict[str, list[float | None]], more_is_better: bool) -> dict[str, float]:
    """Returns ours divided by theirs, for each peer and for the best of them."""
    ours = samples.get(OURS.name)
    if ours is None:
        return {}
    medians = {name: s.median for name, values in samples.items() if (s := summarize(values))}
    found = {
        name: value
        for name in medians
        if name != OURS.name and (value := ratio(ours, samples[name])) is not None
    }
    if found:
        best = (max if more_is_better else min)(found, key=lambda name: medians[name])
        found["best"] = found[best]
    return found


def bandwidth_lines(run: Measured, names: list[str], threads: int) -> list[str]:
    speed = summarize(run.read_speed)
    alone = run.samples.get("decode-1")
    if speed is None or alone is None:
        return []
    shares = []
    for name in names:
        if decoded := summarize(alone.get(name, [])):
            size = run.said[name].get("bytes_per_token", run.bytes_per_token)
            shares.append(f"{name} {decoded.median * size / speed.median:.0%}")
    return [
        f"memory is read at {speed.median / 1e9:.1f} GB/s ±{speed.spread:.0%} by {threads} threads;"
        " decoding alone reaches of this:",
        f"  {', '.join(shares)}",
    ]


def target_lines(run: Measured) -> str:
    lines = []
    for target in TARGETS:
        workload = WORKLOADS[target.workload]
        value = ratios(run.samples.get(target.workload, {}), workload.more_is_better).get(target.against)
        if value is not None:
            against = "the best peer" if target.against == "best" else target.against
            least = "at least" if target.more_is_better else "at most"
            lines.append(
                f"  {workload.title + ', against ' + against:52}{times(value):>8}"
                f"   {least} {target.bound:.1f}×, wanted {target.wanted:.1f}×: {target.reached(value)}"
            )
    return "\n".join(["what we hold ourselves to", *lines]) if lines else ""


def accuracy_table(accuracy: dict[str, Any]) -> str:
    tokens, text = accuracy["tokens"], accuracy.get("text", "")
    lines = [
        f"accuracy against the float32 reference, {tokens:,} tokens of English ({text})",
        f"{'':18}{'KL divergence':>22}{'same first choice':>20}{'perplexity':>14}{'its change':>14}",
    ]
    for name, result in accuracy["engines"].items():
        if name == "reference":
            lines.append(f"  {name:16}{'':22}{'':20}{result['perplexity']:>14.3f}")
            continue
        divergence = f"{result['divergence']:.5f} ±{result['error']:.5f}"
        lines.append(
            f"  {name:16}{divergence:>22}{result['agreement']:>20.2%}{result['perplexity']:>14.3f}"
            f"{result['perplexity_change']:>+14.2%}"
        )
    lines += [f"— {name}: {why}" for name, why in accuracy["absent"].items()]
    return "\n".join(shorten(line) for line in lines)


def data(machine: dict[str, Any], runs: Sequence[Measured], samples: bool) -> dict[str, Any]:
    """Returns all results as plain data, with every sample or only the medians."""
    models = {}
    for run in runs:
        workloads: dict[str, Any] = {}
        for name, row in run.samples.items():
            summaries = {peer: s for peer, values in row.items() if (s := summarize(values))}
            workloads[name] = {
                "unit": WORKLOADS[name].unit,
                "median": {peer: _round(s.median) for peer, s in summaries.items()},
                "quartiles": {peer: [_round(s.low), _round(s.high)] for peer, s in summaries.items()},
                "ratio": {k: _round(v) for k, v in ratios(row, WORKLOADS[name].more_is_better).items()},
                **({"samples": row} if samples else {}),
            }
        speed = summarize(run.read_speed)
        models[run.model] = {
            "file": run.file,
            "bytes_per_token": run.bytes_per_token,
            "read_bytes_per_second": round(speed.median) if speed else None,
            "engines": run.said,
            "absent": run.absent,
            "workloads": workloads,
            "accuracy": run.accuracy,
        }
    return {"machine": machine, "models": models}


def _round(value: float) -> float:
    return float(f"{value:.5g}")
