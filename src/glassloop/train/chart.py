"""A line chart as SVG text: linear axes with labels, lines, and whatever else is added to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from xml.sax.saxutils import escape

COLOURS = ("#7a9cc6", "#c65d3a", "#5aa469", "#8a6bb1", "#c6a03a", "#4a4a4a")
_WIDTH, _LEFT, _TOP, _BOTTOM = 720, 60, 30, 46
_ROWS = 4  # of the grid


class Chart:
    """Collects the parts of a picture; `str` of it is the picture. `x` and `y` are the ranges of the axes."""

    def __init__(
        self, x: tuple[float, float], y: tuple[float, float], *, height: int = 360, right: int = 20
    ) -> None:
        """`right` is the margin beside the axes, in pixels."""
        self._x, self._y = x, y
        self.left, self.right, self.top, self.bottom = _LEFT, _WIDTH - right, _TOP, height - _BOTTOM
        self._height = height
        self._parts = [f'<rect width="{_WIDTH}" height="{height}" fill="white"/>']
        for row in range(_ROWS + 1):
            value = y[0] + (y[1] - y[0]) * row / _ROWS
            self.line([(x[0], value), (x[1], value)], "#ddd", width=1)
            self.text(self.left - 8, self.y(value) + 4, f"{value:.2f}", anchor="end")

    def x(self, value: float) -> float:
        """Returns the pixel of a value of the horizontal axis."""
        low, high = self._x
        return self.left + (value - low) / ((high - low) or 1) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Returns the pixel of a value of the vertical axis."""
        low, high = self._y
        return self.top + (high - value) / ((high - low) or 1) * (self.bottom - self.top)

    def name_x(self, labels: Mapping[float, str], title: str) -> None:
        """Writes labels at values of the horizontal axis, and what it shows."""
        for value, label in labels.items():
            self.text(self.x(value), self.bottom + 18, label, anchor="middle")
        self.text(self.right, self._height - 8, title, anchor="end")

    def line(
        self,
        points: Iterable[tuple[float, float]],
        colour: str,
        *,
        width: float = 1.5,
        dashed: bool = False,
    ) -> None:
        """Draws a line through values."""
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dash}/>'
        )

    def dot(self, x: float, y: float, colour: str, *, filled: bool = True) -> None:
        """Draws a circle at a value."""
        look = (
            f'r="3.5" fill="{colour}"' if filled else f'r="5" fill="none" stroke="{colour}" stroke-width="2"'
        )
        self._parts.append(f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" {look}/>')

    def text(self, x: float, y: float, text: str, colour: str = "black", *, anchor: str = "start") -> None:
        """Writes a text at a pixel."""
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def __str__(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {self._height}"'
            ' font-family="sans-serif" font-size="12">'
        )
        return "\n".join([head, *self._parts, "</svg>"]) + "\n"
