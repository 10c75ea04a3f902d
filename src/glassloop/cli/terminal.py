"""What every command shares when it speaks to a terminal: colour only where it is wanted, tables that become
plain columns in a pipe, and control characters that are shown and never obeyed.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on stderr that something takes a while, and take the line away when it is done."""
    if not sys.stderr.isatty():
        yield
        return
    sys.stderr.write(f"{visible(what, newlines=False)} …")
    sys.stderr.flush()
    try:
        yield
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


@contextmanager
def no_echo() -> Iterator[None]:
    """Keys pressed meanwhile wait for the next prompt and do not get into the text that is written."""
    try:
        import termios
    except ImportError:  # as on Windows
        yield
        return
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    quiet = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def has_colours(stream: TextIO | None = None) -> bool:
    """Whether stdout, or another stream, is a terminal that is meant to have colours
    (https://no-color.org)."""
    if os.environ.get("NO_COLOR"):
        return False
    return (stream or sys.stdout).isatty() and os.environ.get("TERM") != "dumb"


def dim(text: str, stream: TextIO | None = None) -> str:
    """What stands beside the text and is not meant to be read first."""
    return f"\x1b[2m{text}\x1b[22m" if has_colours(stream) else text


def print_json(value: object) -> None:
    """In lines on a terminal. What would steer one is escaped, which is the same JSON."""
    indent = 2 if sys.stdout.isatty() else None
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    print(_STEERS.sub(lambda found: json.dumps(found[0])[1:-1], text))


def visible(text: str, newlines: bool = True) -> str:
    """Returns a text that is safe to send to a terminal: what would steer it or cannot be seen is
    shown as an escape, such as `\\x1b`. Line ends and tabs stay what they are, unless everything must be on
    one line."""
    shown = _STEERS.sub(lambda found: escaped(found[0]), text)
    return shown if newlines else shown.replace("\n", "↵").replace("\t", "⇥")


def escaped(character: str) -> str:
    """A character as Python writes it in a text: `\\x1b`, `\\u202e`."""
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# Controls (C0 but for line ends and tabs, DEL, C1), separators of lines, marks that turn the direction of
# what comes after them, characters without a width that can hide a text (not those that join letters or
# emoji), and lone surrogates, which no terminal can be sent.
_STEERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff]"
)


def quoted(piece: str) -> str:
    """A token as it stands in a table: on one line, its spaces seen."""
    return f"“{visible(piece, newlines=False)}”"


def percent(logprob: float | None) -> str:
    """A probability as people read it; of what was removed there is none."""
    from math import exp

    if logprob is None or logprob == float("-inf"):
        return "–"
    share = 100 * exp(logprob)
    if share >= 0.1:
        return f"{share:.1f} %"
    return f"{share:.1g} %" if share >= 1e-6 else "~0 %"


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    fold: Sequence[str] = (),
    cut: Sequence[str] = (),
    bold: int | None = None,
) -> None:
    """With lines and styles on a terminal, in plain columns elsewhere. `right` names columns of numbers,
    `fold` those that take several lines where there is no room, `cut` those that are cut then; `bold` is a
    row. Whatever is in a cell is shown on one line, and never obeyed."""
    from rich.cells import cell_len

    header, right, fold, cut = (
        [visible(name, newlines=False) for name in names] for names in (header, right, fold, cut)
    )
    rows = [[visible(cell, newlines=False) for cell in row] for row in rows]

    if not sys.stdout.isatty():
        widths = [max(map(cell_len, column)) for column in zip(header, *rows, strict=True)]
        for row in (header, *rows):
            cells = []
            for title, cell, width in zip(header, row, widths, strict=True):
                space = " " * (width - cell_len(cell))
                cells.append(space + cell if title in right else cell + space)
            print("  ".join(cells).rstrip())
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if cut:
        taken = [
            max(map(cell_len, column))
            for title, *column in zip(header, header, *rows, strict=True)
            if title not in cut
        ]
        most = max(6, (console.width - sum(taken) - 2 * len(header)) // len(cut))
    table = Table(
        box=box.SIMPLE_HEAD, header_style="bold", show_edge=False, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for title in header:
        table.add_column(
            title,
            justify="right" if title in right else "left",
            overflow="fold" if title in fold else "ellipsis",
            no_wrap=title not in fold,
            max_width=most if title in cut else None,
        )
    for number, row in enumerate(rows):
        table.add_row(*map(Text, row), style="bold" if number == bold else "")
    console.print(table)
