"""What every command shares when it speaks to a terminal: colour only where it is wanted, tables that become
plain columns in a pipe, and control characters that are shown and never obeyed.
"""

from __future__ import annotations

import json
import os
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
    sys.stderr.write(f"{what} …")
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
    """In lines on a terminal; what would steer it is escaped there, which is the same JSON."""
    terminal = sys.stdout.isatty()
    text = json.dumps(value, indent=2 if terminal else None, ensure_ascii=False, allow_nan=False)
    print("".join(map(_escaped, text)) if terminal else text)


def _escaped(character: str) -> str:
    steers = character != "\n" and _shown(character, newlines=True) != character
    return f"\\u{ord(character):04x}" if steers else character


def visible(text: str, newlines: bool = True) -> str:
    """A text that a terminal can be given: what would steer it is shown instead. Line ends and tabs stay
    what they are, unless everything must be on one line."""
    return "".join(_shown(character, newlines) for character in text)


def _shown(character: str, newlines: bool) -> str:
    code = ord(character)
    if character in "\n\t":
        return character if newlines else {"\n": "↵", "\t": "⇥"}[character]
    if code < 0x20:
        return chr(0x2400 + code)  # the picture of it: ␛ for escape
    if code == 0x7F:
        return "␡"
    # C1 controls, and marks that turn the direction of what comes after them.
    if 0x80 <= code < 0xA0 or 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069:
        return f"<{code:04X}>"
    if 0xD800 <= code < 0xE000:
        return "\ufffd"
    return character


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
    row."""
    from rich.cells import cell_len

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
