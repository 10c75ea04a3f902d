"""The curves of a run: one JSON object per line, and a picture (SVG) of the losses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glassloop.util.chart import COLOURS, Chart
from glassloop.util.files import whole_file

Point = dict[str, Any]


class Curves:
    """Appends points to a file. A point has a step and some of: loss, validation, lr, norm, tokens, seconds,
    sample."""

    def __init__(self, path: Path, done: int = 0) -> None:
        """Keeps the points up to step `done`, where the run goes on."""
        self.points = [point for point in read_points(path) if point["step"] <= done]
        with whole_file(path) as file:
            file.writelines(json.dumps(point).encode() + b"\n" for point in self.points)
        self._file = path.open("a", encoding="utf-8")

    def add(self, **point: Any) -> None:
        self.points.append(point)
        self._file.write(json.dumps(point) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def step_facts(step: int, steps: int, loss: float, tokens_per_second: float) -> str:
    """Returns what the progress of a run says of a step."""
    return f"step {step}/{steps}  loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s"


def read_points(path: Path) -> list[Point]:
    """Returns the points of a file. A last line that was cut off is left out."""
    points: list[Point] = []
    if not path.exists():
        return points
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            point = json.loads(line)
        except ValueError:
            break
        if isinstance(point, dict) and isinstance(point.get("step"), int):
            points.append(point)
    return points


def svg(points: Sequence[Point]) -> str:
    """Returns a picture of the losses over the steps; an empty text if there are none."""
    lines = {
        name: [(point["step"], point[name]) for point in points if isinstance(point.get(name), float)]
        for name in ("loss", "validation")
    }
    values = [value for line in lines.values() for _, value in line]
    if not values:
        return ""
    last = max(1, max(step for line in lines.values() for step, _ in line))
    chart = Chart((0, last), (min(values), max(values)))
    chart.name_x({last * tick / 4: f"{last * tick / 4:.0f}" for tick in range(5)}, "step")
    for number, (name, line) in enumerate(lines.items()):
        if line:
            chart.line(thinned(line), COLOURS[number])
            chart.text(chart.left + 10 + 190 * number, 18, f"{name} {line[-1][1]:.4f}", COLOURS[number])
    return str(chart)


def thinned(line: Sequence[tuple[int, float]], most: int = 1000) -> list[tuple[float, float]]:
    """Returns at most `most` points, each the mean of its neighbours."""
    size = -(-len(line) // most) or 1
    groups = [line[at : at + size] for at in range(0, len(line), size)]
    return [(sum(s for s, _ in g) / len(g), sum(v for _, v in g) / len(g)) for g in groups]
