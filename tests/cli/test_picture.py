"""Pictures: any text may stand in them."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop.cli.picture import Box, Cell, grid, svg
from glassloop.cli.png import _dots, png


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=12), st.lists(st.text(max_size=6), min_size=1, max_size=4), st.floats(-2, 2))
def test_every_text_and_number_can_be_drawn(title, names, share):
    drawing = grid(title, names, [(name, [Cell(share, name)] * len(names)) for name in names])
    root = ET.fromstring(svg(drawing))
    assert len(root.findall("{*}rect")) == 1 + len(names) ** 2
    for shape in drawing.shapes:
        if isinstance(shape, Box):
            assert shape.x + shape.width <= drawing.width and shape.y + shape.height <= drawing.height
    assert png(drawing).startswith(b"\x89PNG")


def test_every_letter_has_dots_of_its_own():
    letters = [chr(code) for code in range(0x21, 0x7F)]
    assert len({_dots(letter) for letter in letters}) == len(letters) and not any(_dots(" "))
    assert _dots("漢") == _dots("👍") == _dots("\x1b") not in {_dots(letter) for letter in letters}


def test_a_higher_number_is_darker():
    boxes = [
        shape
        for shape in grid("", ["a"] * 3, [("", [Cell(0.1), Cell(0.5), Cell(0.9)])]).shapes
        if isinstance(shape, Box)
    ]
    assert sum(boxes[0].colour) > sum(boxes[1].colour) > sum(boxes[2].colour)
