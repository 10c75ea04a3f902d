"""The curves of a run: one JSON object per line, and a picture (SVG) of the losses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glassloop.train.write_safetensors import whole_file

Point = dict[str, Any]

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 720, 360, 60, 40, 30, 20


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
    """Returns a picture of the losses over the steps."""
    lines = {
        name: [(point["step"], point[name]) for point in points if isinstance(point.get(name), float)]
        for name in ("loss", "validation")
    }
    values = [value for line in lines.values() for _, value in line]
    if not values:
        return ""
    low, high = min(values), max(values)
    high = high if high > low else low + 1
    last = max(1, max(step for line in lines.values() for step, _ in line))

    def place(step: float, value: float) -> str:
        x = _LEFT + step / last * (_WIDTH - _LEFT - _RIGHT)
        y = _TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)
        return f"{x:.1f},{y:.1f}"

    colours = {"loss": "#7a9cc6", "validation": "#c65d3a"}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for tick in range(5):
        value = low + (high - low) * tick / 4
        x, y = place(0, value).split(",")
        parts.append(f'<line x1="{x}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{value:.2f}</text>')
        step = last * tick / 4
        x = place(step, low).split(",")[0]
        parts.append(f'<text x="{x}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{step:.0f}</text>')
    for number, (name, line) in enumerate(lines.items()):
        if line:
            path = " ".join(place(step, value) for step, value in _thinned(line))
            parts.append(
                f'<polyline points="{path}" fill="none" stroke="{colours[name]}" stroke-width="1.5"/>'
            )
            parts.append(
                f'<text x="{_LEFT + 10 + 190 * number}" y="18" fill="{colours[name]}">'
                f"{name} {line[-1][1]:.4f}</text>"
            )
    parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 6}" text-anchor="end">step</text></svg>')
    return "\n".join(parts) + "\n"


def _thinned(line: Sequence[tuple[int, float]], most: int = 1000) -> list[tuple[float, float]]:
    """Returns at most `most` points, each the mean of its neighbours."""
    size = -(-len(line) // most)
    groups = [line[at : at + size] for at in range(0, len(line), size)]
    return [(sum(s for s, _ in g) / len(g), sum(v for _, v in g) / len(g)) for g in groups]
