"""What a run has learned, step by step: `glassloop train show`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from glassloop.train.curves import read_points
from glassloop.train.run_folder import RunFolder
from glassloop.util.plain_text import PlainTable, visible


def history(folder: Path) -> list[dict[str, Any]]:
    """Returns one entry for each step with a validation, a probe or a sample: all that was recorded there."""
    place = RunFolder(folder)
    place.read_config()  # raises if this is no run
    steps: dict[int, dict[str, Any]] = {}
    for point in read_points(place.curves):
        steps.setdefault(point["step"], {}).update(point)
    list_names = ("validation", "end_probability", "neighbours", "sample")
    return [entry for _, entry in sorted(steps.items()) if any(key in entry for key in list_names)]


def show_text(entries: list[dict[str, Any]]) -> str:
    """Returns the history as text: a table of numbers, then neighbours and samples by step."""
    rows = []
    for entry in entries:
        at_ends, elsewhere = entry.get("end_probability") or (None, None)
        numbers = (entry.get("loss"), entry.get("validation"), at_ends, elsewhere)
        rows.append([str(entry["step"]), *("" if value is None else f"{value:.4f}" for value in numbers)])
    header = ["step", "loss", "validation", "p(end) at ends", "elsewhere"]
    parts = [str(PlainTable(header, rows, header))]
    words = dict.fromkeys(word for entry in entries for word in entry.get("neighbours", {}))
    for word in words:
        parts.append(f"\nclosest to {visible(word, newlines=False)!r}")
        parts += [
            f"  step {entry['step']}: {visible(' | '.join(entry['neighbours'][word]), newlines=False)}"
            for entry in entries
            if word in entry.get("neighbours", {})
        ]
    for entry in entries:
        if "sample" in entry:
            parts.append(f"\n── step {entry['step']} ──\n{visible(entry['sample'])}")
    return "\n".join(parts)
