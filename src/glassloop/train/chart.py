"""Line charts as SVG: a frame with ticks, and lines, dots and texts over it."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import Literal

COLOURS = ("#c65d3a", "#7a9cc6", "#5aa469", "#c6a03a", "#8a6bb1", "#4a4a4a")

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 720, 400, 60, 30, 46


class Chart:
    """A chart of values from `left` to `right` and from `low` to `high`, with a margin beside it."""

    def __init__(self, left: float, right: float, low: float, high: float, margin: int = 20) -> None:
        self._left, self._low = left, low
        self._end = _WIDTH - margin
        self._per_x = (self._end - _LEFT) / (right - left)
        self._per_y = (_HEIGHT - _TOP - _BOTTOM) / (high - low)
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
            ' font-family="sans-serif" font-size="12">',
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        ]
        for tick in range(5):
            value = low + (high - low) * tick / 4
            self.line([(left, value), (right, value)], "#ddd")
            self._text(_LEFT - 8, self._y(value) + 4, f"{value:.2f}", "end")

    def _x(self, value: float) -> float:
        return _LEFT + (value - self._left) * self._per_x

    def _y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - self._low) * self._per_y

    def _text(self, x: float, y: float, text: str, anchor: str = "start", colour: str = "black") -> None:
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{html.escape(text)}</text>'
        )

    def name_x(self, ticks: Mapping[float, str], name: str) -> None:
        """Writes texts below the chart: at some values, and the name of the axis."""
        for value, text in ticks.items():
            self._text(self._x(value), _HEIGHT - _BOTTOM + 18, text, "middle")
        self._text(self._end, _HEIGHT - 8, name, "end")

    def line(
        self, points: Iterable[tuple[float, float]], colour: str, width: float = 1, dash: str = ""
    ) -> None:
        path = " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in points)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashed}/>'
        )

    def dot(self, x: float, y: float, colour: str) -> None:
        self._parts.append(f'<circle cx="{self._x(x):.1f}" cy="{self._y(y):.1f}" r="3.5" fill="{colour}"/>')

    def note(self, x: float, y: float, text: str, down: float = 0) -> None:
        """Writes a text to the left of a point, or so many pixels below that."""
        self._text(self._x(x) - 8, self._y(y) + 4 + down, text, "end")

    def legend(
        self, number: int, text: str, colour: str, where: Literal["left", "right", "beside"] = "left"
    ) -> None:
        """Writes what a colour means, as line `number` in a corner at the top of the chart or beside it."""
        x = {"left": _LEFT + 10, "right": self._end - 10, "beside": self._end + 12}[where]
        self._text(x, _TOP + 16 + 16 * number, text, "end" if where == "right" else "start", colour)

    def svg(self) -> str:
        return "\n".join([*self._parts, "</svg>"]) + "\n"
