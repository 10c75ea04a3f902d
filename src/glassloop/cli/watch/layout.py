"""A run's text as lines of a given width. Each character knows its token, so that a token can be marked and a
click can find it. Control characters are shown and never obeyed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rich.cells import cell_len

from glassloop.cli.diffusion import MASKED
from glassloop.cli.show import surprise_colour
from glassloop.cli.terminal import escaped, visible
from glassloop.diffuse.frames import Frame
from glassloop.record.run import Run

PROMPT = -1  # the token number of characters of the prompt


class ScreenCell(NamedTuple):
    """A character on the screen."""

    text: str
    width: int
    token: int
    style: str


def cells_of(run: Run, prompt: str, at: int) -> Iterator[ScreenCell]:
    """Yields the prompt, then each token in the colour of its surprise, underlined if it was forced; the one
    at `at` is marked."""
    yield from _cells(prompt, PROMPT, "dim")
    for number, token in enumerate(run.tokens):
        colour = surprise_colour(token)
        style = "" if colour is None else f"color({colour})"
        if token.source == "forced":
            style = f"{style} underline".lstrip()
        text = token.text
        if number == at:
            style = f"{style} bold reverse"
            text = text or token.piece  # part of a character has no text, but a piece
        yield from _cells(text, number, style)
    yield from _cells(run.tail, len(run.tokens) - 1, "dim")


def frame_cells(run: Run, prompt: str, frame: Frame, at: int) -> Iterator[ScreenCell]:
    """Yields the prompt, the blocks that were complete before a pass, and the block that it worked on: masks
    as `░`, in bold what it has filled; red is what had been taken back. The place `at` is marked."""
    yield from _cells(prompt, PROMPT, "dim")
    for number, token in enumerate(run.tokens[: frame.first]):
        yield from _cells(token.text, number, "")
    for number, cell in enumerate(frame.cells, frame.first):
        style = "bold green" if cell.changed and cell.text is not None else "red" if cell.changed else ""
        if number == at:
            style = f"{style} reverse".lstrip()
        yield from _cells(MASKED if cell.text is None else cell.text, number, style)


def wrap(cells: Iterable[ScreenCell], width: int) -> list[list[ScreenCell]]:
    """Returns lines that end at a line end of the text, or after a space if there is one."""
    lines: list[list[ScreenCell]] = []
    line: list[ScreenCell] = []
    used, space = 0, 0  # the width of the line; the number of characters up to its last space
    for cell in cells:
        if used + cell.width > width and cell.text != " ":
            keep = space or len(line)
            lines.append(line[:keep])
            line = line[keep:]
            used, space = sum(each.width for each in line), 0
        line.append(cell)
        used += cell.width
        if cell.text == " ":
            space = len(line)
        elif cell.text == "↵" and cell.style.endswith(_BREAK):
            lines.append(line)
            line, used, space = [], 0, 0
    return [*lines, line]


_JOINERS = "\u200b\u200c\u200d\u2060\ufe0e\ufe0f\ufeff"  # they have no width
_BREAK = " italic"  # marks a line end, to tell it from a "↵" in the text


def _cells(text: str, token: int, style: str) -> Iterator[ScreenCell]:
    for character in text:
        if character == "\n":
            yield ScreenCell("↵", 1, token, f"{style if 'reverse' in style else 'dim'}{_BREAK}")
            continue
        if character in _JOINERS:
            # Terminals disagree on the width of joined characters, so these are shown separately.
            if "reverse" in style:
                yield from _cells(escaped(character), token, style)
            continue
        for shown in visible(character, newlines=False):
            yield ScreenCell(shown, cell_len(shown), token, style)
