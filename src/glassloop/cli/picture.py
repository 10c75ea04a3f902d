"""A grid of numbers as a picture: rows and columns with names, a cell the darker the higher its number.

It is drawn as a list of boxes and words, which is written as SVG here and as PNG by `png.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from glassloop.errors import GlassloopError

Colour = tuple[int, int, int]

INK: Colour = (32, 34, 44)
PAPER: Colour = (255, 255, 255)
_LOW: Colour = (238, 242, 250)
_HIGH: Colour = (28, 66, 150)

LETTER = 7  # a letter's width; all are alike
_LINE = 20  # a row's height
_SPACE = 10


class Box(NamedTuple):
    x: int
    y: int
    width: int
    height: int
    colour: Colour


class Words(NamedTuple):
    x: int  # where they begin, or end
    y: int  # the line they stand on
    text: str
    colour: Colour
    at_end: bool = False  # x is where they end


class Drawing(NamedTuple):
    width: int
    height: int
    shapes: list[Box | Words]


class Cell(NamedTuple):
    share: float  # from 0 to 1
    text: str = ""


def grid(title: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[Cell]]]) -> Drawing:
    """Names of the rows at the left, names of the columns above; a column is as wide as its widest text."""
    left = _SPACE + LETTER * max([len(name) for name, _ in rows], default=0) + _SPACE
    widths = [
        LETTER * max(len(name), *(len(cells[at].text) for _, cells in rows)) + _SPACE
        for at, name in enumerate(columns)
    ]
    top = 3 * _LINE
    shapes: list[Box | Words] = [Words(_SPACE, _LINE, title, INK)]
    x = left
    for name, width in zip(columns, widths, strict=True):
        shapes.append(Words(x + _SPACE // 2, top - 6, name, INK))
        x += width
    for number, (name, cells) in enumerate(rows):
        y, x = top + number * _LINE, left
        shapes.append(Words(left - _SPACE, y + 14, name, INK, at_end=True))
        for cell, width in zip(cells, widths, strict=True):
            share = min(max(cell.share, 0.0), 1.0)
            shapes.append(Box(x, y, width - 1, _LINE - 1, _between(share)))
            shapes.append(Words(x + _SPACE // 2, y + 14, cell.text, PAPER if share > 0.45 else INK))
            x += width
    wide = max(x, _SPACE + LETTER * len(title)) + _SPACE
    return Drawing(wide, top + len(rows) * _LINE + _SPACE, shapes)


def save(drawing: Drawing, path: Path) -> None:
    """As the name's ending says: .svg or .png."""
    kind = path.suffix.lower()
    if kind == ".svg":
        data = svg(drawing).encode()
    elif kind == ".png":
        from glassloop.cli.png import png

        data = png(drawing)
    else:
        raise GlassloopError(f"picture is {str(path)!r}; a name that ends in .svg or .png is expected")
    try:
        path.write_bytes(data)
    except OSError as error:
        raise GlassloopError(f"cannot write {path}: {error.strerror or error}") from error


def svg(drawing: Drawing) -> str:
    size = f'width="{drawing.width}" height="{drawing.height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {drawing.width} {drawing.height}"'
        ' font-family="monospace" font-size="11.5" xml:space="preserve">',
        f'<rect {size} fill="{_hex(PAPER)}"/>',
    ]
    for shape in drawing.shapes:
        if isinstance(shape, Box):
            place = f'x="{shape.x}" y="{shape.y}" width="{shape.width}" height="{shape.height}"'
            lines.append(f'<rect {place} fill="{_hex(shape.colour)}"/>')
        elif shape.text:
            anchor = ' text-anchor="end"' if shape.at_end else ""
            place = f'x="{shape.x}" y="{shape.y}" fill="{_hex(shape.colour)}"{anchor}'
            lines.append(f"<text {place}>{_escaped(shape.text)}</text>")
    return "\n".join([*lines, "</svg>\n"])


def _between(share: float) -> Colour:
    red, green, blue = (round(low + (high - low) * share) for low, high in zip(_LOW, _HIGH, strict=True))
    return red, green, blue


def _hex(colour: Colour) -> str:
    return "#" + bytes(colour).hex()


def _escaped(text: str) -> str:
    """What XML may hold: its own signs escaped, what it has no place for left out."""
    told = "".join(c for c in text if c >= " " and not "\ud800" <= c <= "\udfff" and c not in "\ufffe\uffff")
    return told.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
