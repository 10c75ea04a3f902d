"""A grid of numbers as an SVG picture: named rows and columns; the higher a number, the darker its cell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from glassloop.errors import GlassloopError
from glassloop.util.files import write_text

Colour = tuple[int, int, int]

_INK: Colour = (32, 34, 44)
_PAPER: Colour = (255, 255, 255)
_LOW: Colour = (238, 242, 250)
_HIGH: Colour = (28, 66, 150)

_LETTER = 7  # the width of a letter; the font is monospace
_LINE = 20  # the height of a row
_SPACE = 10
_NOT_IN_XML = re.compile("[^\t\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class GridCell(NamedTuple):
    share: float  # from 0 to 1
    text: str = ""


def grid(title: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[GridCell]]]) -> str:
    """Returns the SVG text of a grid. A column is as wide as its widest text."""
    left = _SPACE + _LETTER * max([len(name) for name, _ in rows], default=0) + _SPACE
    widths = [
        _LETTER * max([len(name), *(len(cells[at].text) for _, cells in rows)]) + _SPACE
        for at, name in enumerate(columns)
    ]
    top = 3 * _LINE
    width = max(left + sum(widths), _SPACE + _LETTER * len(title)) + _SPACE
    height = top + len(rows) * _LINE + _SPACE
    shapes = [_box(0, 0, width, height, _PAPER), _words(_SPACE, _LINE, title)]
    x = left
    for name, wide in zip(columns, widths, strict=True):
        shapes.append(_words(x + _SPACE // 2, top - 6, name))
        x += wide
    for number, (name, cells) in enumerate(rows):
        y, x = top + number * _LINE, left
        shapes.append(_words(left - _SPACE, y + 14, name, anchor="end"))
        for cell, wide in zip(cells, widths, strict=True):
            share = min(max(cell.share, 0.0), 1.0)
            shapes.append(_box(x, y, wide - 1, _LINE - 1, _between(share)))
            shapes.append(_words(x + _SPACE // 2, y + 14, cell.text, _PAPER if share > 0.45 else _INK))
            x += wide
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    style = 'font-family="monospace" font-size="11.5" xml:space="preserve"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>', *shapes, "</svg>\n"])


def save(svg: str, path: Path) -> None:
    """Writes a picture to a file whose name ends in .svg."""
    if path.suffix.lower() != ".svg":
        raise GlassloopError(f"--picture is {str(path)!r}; a name that ends in .svg is expected")
    write_text(path, svg)


def _box(x: int, y: int, width: int, height: int, colour: Colour) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{_hex(colour)}"/>'


def _words(x: int, y: int, text: str, colour: Colour = _INK, anchor: str = "start") -> str:
    shown = escape(_NOT_IN_XML.sub("", text), quote=False)
    return f'<text x="{x}" y="{y}" fill="{_hex(colour)}" text-anchor="{anchor}">{shown}</text>'


def _between(share: float) -> Colour:
    red, green, blue = (round(low + (high - low) * share) for low, high in zip(_LOW, _HIGH, strict=True))
    return red, green, blue


def _hex(colour: Colour) -> str:
    return "#" + bytes(colour).hex()
