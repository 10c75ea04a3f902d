"""Text for people, without any terminal library: tokens in quotes, percentages, and tables in plain columns.

Texts of a model or a file are untrusted, so characters that would control a terminal are shown and not sent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple


def visible(text: str, newlines: bool = True) -> str:
    """Returns a text that is safe to send to a terminal: characters that would control it or cannot be seen
    are escaped (`\\x1b`). Without `newlines`, line ends and tabs become symbols, so that it is one line."""
    shown = STEERING.sub(lambda match: escaped(match[0]), text)
    return shown if newlines else shown.replace("\n", "↵").replace("\t", "⇥")


def escaped(character: str) -> str:
    """Returns a character as Python writes it in a string: `\\x1b`, `\\u202e`."""
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# Controls (C0 except line ends and tabs, DEL, C1), separators of lines, marks that change the direction of
# text, characters without a width that can hide a text (except those that join letters or emoji), and lone
# surrogates, which cannot be encoded.
STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff]"
)


def quoted(piece: str) -> str:
    """Returns a token as tables show it: on one line, in quotes that make its spaces visible."""
    return f"“{visible(piece, newlines=False)}”"


def percent(logprob: float | None) -> str:
    """Returns a log-probability as a percentage, a dash if there is none or the token was removed, or a
    question mark if it is NaN: not known."""
    from math import exp

    if logprob is None or logprob == float("-inf"):
        return "–"
    if logprob != logprob:
        return "?"
    share = 100 * exp(logprob)
    if share >= 0.1:
        return f"{share:.1f} %"
    return f"{share:.1g} %" if share >= 1e-6 else "~0 %"


def number(value: float, form: str) -> str:
    """Returns a number in a format of Python, or a question mark if it is NaN: not known."""
    return "?" if value != value else format(value, form)


def known(value: int | None) -> str:
    """Returns a count, or a question mark if it is not known."""
    return "?" if value is None else str(value)


class PlainTable(NamedTuple):
    """The cells of a table."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()  # the titles of the columns that are aligned to the right

    def __str__(self) -> str:
        """Returns the table in plain columns, with control characters shown."""
        lines = [[visible(cell, newlines=False) for cell in row] for row in (self.header, *self.rows)]
        widths = [max(map(cell_width, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                _aligned(cell, width, title in self.right)
                for title, cell, width in zip(self.header, line, widths, strict=True)
            ).rstrip()
            for line in lines
        )


def cell_width(text: str) -> int:
    """Returns how many columns of a terminal a text takes: East Asian characters and emoji take two."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(each) else 2 if east_asian_width(each) in ("W", "F") else 1 for each in text)


def _aligned(cell: str, width: int, right: bool) -> str:
    space = " " * (width - cell_width(cell))
    return space + cell if right else cell + space
