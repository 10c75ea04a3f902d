"""Pictures as SVG text: a drawing, a line chart with axes, and a grid of shaded cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from glassloop.errors import GlassloopError
from glassloop.util.files import write_text

COLOURS = ("#7a9cc6", "#c65d3a", "#5aa469", "#8a6bb1", "#c6a03a", "#4a4a4a")
_GRID_ROWS = 4  # of a chart
_SANS_SERIF = 'font-family="sans-serif" font-size="12"'
_NOT_IN_XML = re.compile("[^\t\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Drawing:
    """Collects shapes, all at pixels; `str` of it is the picture. `style` are attributes of the whole."""

    def __init__(self, width: int, height: int, style: str = _SANS_SERIF) -> None:
        self.width, self.height = width, height
        self._style = style
        self._parts: list[str] = []
        self.box(0, 0, width, height, "#ffffff")

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """Draws a filled rectangle."""
        self._parts.append(
            f'<rect x="{_px(x)}" y="{_px(y)}" width="{_px(width)}" height="{_px(height)}" fill="{colour}"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        colour: str = "black",
        *,
        anchor: str = "start",
        size: int | None = None,
        upwards: bool = False,
    ) -> None:
        """Writes a text, from left to right or `upwards`. Characters that XML cannot hold are left out."""
        font = "" if size is None else f' font-size="{size}"'
        turn = f' transform="rotate(-90 {_px(x)} {_px(y)})"' if upwards else ""
        shown = escape(_NOT_IN_XML.sub("", text))
        place = f'x="{_px(x)}" y="{_px(y)}" fill="{colour}" text-anchor="{anchor}"{font}{turn}'
        self._parts.append(f"<text {place}>{shown}</text>")

    def polyline(
        self,
        points: Iterable[tuple[float, float]],
        colour: str,
        *,
        width: float = 1.5,
        opacity: float = 1,
        dashed: bool = False,
    ) -> None:
        """Draws a line through pixels."""
        path = " ".join(f"{_px(x)},{_px(y)}" for x, y in points)
        look = "" if opacity == 1 else f' opacity="{opacity}"'
        look += ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{look}/>'
        )

    def circle(
        self, x: float, y: float, radius: float, colour: str, *, filled: bool = True, title: str = ""
    ) -> None:
        """Draws a circle; `title` is shown where a pointer rests on it."""
        fill = f'fill="{colour}"' if filled else f'fill="none" stroke="{colour}" stroke-width="2"'
        end = f"><title>{escape(title)}</title></circle>" if title else "/>"
        self._parts.append(f'<circle cx="{_px(x)}" cy="{_px(y)}" r="{radius:g}" {fill}{end}')

    def __str__(self) -> str:
        box = f'viewBox="0 0 {self.width} {self.height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} {self._style}>'
        return "\n".join([head, *self._parts, "</svg>"]) + "\n"


def _px(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.1f}"


class Margins(NamedTuple):
    """The pixels between the axes and the border of a chart."""

    left: int = 60
    right: int = 20
    top: int = 30
    bottom: int = 46


class Chart(Drawing):
    """A drawing with linear axes; `x_range` and `y_range` are what they show."""

    def __init__(
        self,
        x_range: tuple[float, float],
        y_range: tuple[float, float],
        *,
        height: int = 360,
        margins: Margins | None = None,
        y_labels: Mapping[float, str] | None = None,
    ) -> None:
        """`y_labels` are the values of the grid with their texts, by default five at even distances."""
        super().__init__(720, height)
        margins = margins or Margins()
        self._x_range, self._y_range = x_range, y_range
        self.left, self.right = margins.left, self.width - margins.right
        self.top, self.bottom = margins.top, height - margins.bottom
        if y_labels is None:
            low, high = y_range
            values = [low + (high - low) * row / _GRID_ROWS for row in range(_GRID_ROWS + 1)]
            y_labels = {value: f"{value:.2f}" for value in values}
        for value, label in y_labels.items():
            self.line([(x_range[0], value), (x_range[1], value)], "#ddd", width=1)
            self.text(self.left - 8, self.y(value) + 4, label, anchor="end")

    def x(self, value: float) -> float:
        """Returns the pixel of a value of the horizontal axis."""
        low, high = self._x_range
        return self.left + (value - low) / ((high - low) or 1) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Returns the pixel of a value of the vertical axis."""
        low, high = self._y_range
        return self.top + (high - value) / ((high - low) or 1) * (self.bottom - self.top)

    def name_x(self, labels: Mapping[float, str], title: str) -> None:
        """Writes labels at values of the horizontal axis, and what it shows."""
        for value, label in labels.items():
            self.text(self.x(value), self.bottom + 18, label, anchor="middle")
        self.text(self.right, self.height - 8, title, anchor="end")

    def line(self, points: Iterable[tuple[float, float]], colour: str, **look: Any) -> None:
        """Draws a line through values; `look` as for `polyline`."""
        self.polyline([(self.x(x), self.y(y)) for x, y in points], colour, **look)

    def dot(self, x: float, y: float, colour: str, *, filled: bool = True, title: str = "") -> None:
        """Draws a circle at a value."""
        self.circle(self.x(x), self.y(y), 3.5 if filled else 5, colour, filled=filled, title=title)


# ── grids ──────────────────────────────────────────────────────────────────────────────────────────────────

Colour = tuple[int, int, int]
_LOW: Colour = (238, 242, 250)
_HIGH: Colour = (28, 66, 150)
_INK, _PAPER = "#20222c", "#ffffff"
_LETTER = 7  # the width of a letter; the font is monospace
_LINE = 20  # the height of a row
_SPACE = 10
_MONOSPACE = 'font-family="monospace" font-size="11.5" xml:space="preserve"'


class GridCell(NamedTuple):
    share: float  # from 0 to 1
    text: str = ""


def grid(title: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[GridCell]]]) -> str:
    """Returns the SVG text of a grid of numbers with named rows and columns; the higher a number, the darker
    its cell. A column is as wide as its widest text."""
    left = _SPACE + _LETTER * max([len(name) for name, _ in rows], default=0) + _SPACE
    widths = [
        _LETTER * max([len(name), *(len(cells[at].text) for _, cells in rows)]) + _SPACE
        for at, name in enumerate(columns)
    ]
    top = 3 * _LINE
    width = max(left + sum(widths), _SPACE + _LETTER * len(title)) + _SPACE
    height = top + len(rows) * _LINE + _SPACE
    drawing = Drawing(width, height, f'width="{width}" height="{height}" {_MONOSPACE}')
    drawing.text(_SPACE, _LINE, title, _INK)
    x = left
    for name, wide in zip(columns, widths, strict=True):
        drawing.text(x + _SPACE // 2, top - 6, name, _INK)
        x += wide
    for number, (name, cells) in enumerate(rows):
        y, x = top + number * _LINE, left
        drawing.text(left - _SPACE, y + 14, name, _INK, anchor="end")
        for cell, wide in zip(cells, widths, strict=True):
            share = min(max(cell.share, 0.0), 1.0)
            drawing.box(x, y, wide - 1, _LINE - 1, _between(share))
            drawing.text(x + _SPACE // 2, y + 14, cell.text, _PAPER if share > 0.45 else _INK)
            x += wide
    return str(drawing)


def _between(share: float) -> str:
    """Returns the colour of a share, from the lightest to the darkest."""
    return "#" + bytes(round(low + (high - low) * share) for low, high in zip(_LOW, _HIGH, strict=True)).hex()


def save_svg(svg: str, path: Path) -> None:
    """Writes a picture to a file whose name ends in .svg."""
    if path.suffix.lower() != ".svg":
        raise GlassloopError(f"--picture is {str(path)!r}; a name that ends in .svg is expected")
    write_text(path, svg)
