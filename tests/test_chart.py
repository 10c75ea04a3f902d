"""Pictures: an SVG has every text and a cell for every number, all of them inside the picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop.errors import GlassloopError
from glassloop.util.chart import GridCell, grid, save_svg

WORDS = st.text(max_size=6)


def boxes(root: ET.Element) -> list[tuple[int, int, int, int]]:
    """The rectangles, the background first: left, top, right, bottom."""
    places = [
        [int(box.get(name, "")) for name in ("x", "y", "width", "height")] for box in root.findall("{*}rect")
    ]
    return [(x, y, x + width, y + height) for x, y, width, height in places]


def in_xml(text: str) -> str:
    """The text without characters that XML 1.0 does not have. A parser reads a tab in any text as it is."""
    return "".join(
        each
        for each in text
        if each == "\t" or (each >= " " and not "\ud800" <= each <= "\udfff")
        if each not in "\ufffe\uffff"
    )


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=12), st.lists(WORDS, min_size=1, max_size=4), st.lists(WORDS, max_size=4), st.data())
def test_every_text_and_number_is_drawn_in_its_place(title, columns, names, data):
    cells = st.builds(GridCell, st.floats(-2, 2), WORDS)
    rows = [(name, [data.draw(cells) for _ in columns]) for name in names]
    root = ET.fromstring(grid(title, columns, rows))
    texts = [in_xml(each.text or "") for each in root.findall("{*}text")]
    expected = [title, *columns]
    for name, line in rows:
        expected += [name, *(cell.text for cell in line)]
    assert texts == [in_xml(each) for each in expected]
    background, *drawn = boxes(root)
    width, height = int(root.get("width", "")), int(root.get("height", ""))
    assert background == (0, 0, width, height) and len(drawn) == len(columns) * len(rows)
    for at, (x, y, right, bottom) in enumerate(drawn):
        assert 0 <= x < right <= width and 0 <= y < bottom <= height
        if at % len(columns):  # cells of a row stand side by side and do not overlap
            before = drawn[at - 1]
            assert before[2] <= x and (before[1], before[3]) == (y, bottom)
        elif at:
            assert drawn[at - 1][3] <= y
    for label in list(root.findall("{*}text"))[1 + len(columns) :]:
        assert 0 <= int(label.get("x", "")) <= width and 0 <= int(label.get("y", "")) <= height


def test_a_higher_number_is_darker_and_its_text_stays_readable():
    root = ET.fromstring(
        grid("", ["a"] * 3, [("", [GridCell(0.1, "x"), GridCell(0.5, "y"), GridCell(0.9, "z")])])
    )
    fills = [bytes.fromhex(box.get("fill", "")[1:]) for box in root.findall("{*}rect")][1:]
    inks = [bytes.fromhex(text.get("fill", "")[1:]) for text in root.findall("{*}text")][-3:]
    assert sum(fills[0]) > sum(fills[1]) > sum(fills[2])
    assert all(abs(sum(fill) - sum(ink)) > 250 for fill, ink in zip(fills, inks, strict=True))


def test_a_picture_is_an_svg_file(tmp_path):
    svg = grid("<&> “é”", ["漢字"], [("👍", [GridCell(1.0, "]]>")])])
    save_svg(svg, tmp_path / "a.SVG")
    root = ET.parse(tmp_path / "a.SVG").getroot()
    assert [each.text for each in root.findall("{*}text")] == ["<&> “é”", "漢字", "👍", "]]>"]
    for name in ("a.png", "a", "svg"):
        with pytest.raises(GlassloopError, match=r"a name that ends in \.svg is expected"):
            save_svg(svg, tmp_path / name)
    assert [each.name for each in tmp_path.iterdir()] == ["a.SVG"]
