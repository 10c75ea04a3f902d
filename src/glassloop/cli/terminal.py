"""What every command uses to write to a terminal: colours only where they are wanted, tables that are plain
columns in a pipe, and control characters that are shown and never obeyed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, TextIO

from glassloop.util.plain_text import STEERING, PlainTable, cell_width
from glassloop.util.plain_text import escaped as escaped
from glassloop.util.plain_text import percent as percent
from glassloop.util.plain_text import quoted as quoted
from glassloop.util.plain_text import visible as visible

if TYPE_CHECKING:
    from rich.progress import Progress


@contextmanager
def working(what: str) -> Iterator[None]:
    """Shows on stderr, if that is a terminal, what takes a while, and clears the line afterwards."""
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
def progress_bar(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """Shows on stderr, if that is a terminal, what takes a while: in words at first, and as a bar after a
    second, which the yielded function moves (done, of how many, and what is being done now)."""
    if not sys.stderr.isatty():
        yield lambda done, total, now: None
        return
    bar: Progress | None = None
    started = time.monotonic()

    def advance(done: int, total: int, now: str) -> None:
        nonlocal bar
        if bar is None and time.monotonic() - started > 1:
            sys.stderr.write("\r\x1b[K")
            bar = _started_bar()
        if bar is not None:
            text = visible(f"{what} {now}".rstrip(), newlines=False)
            bar.update(bar.task_ids[0], completed=done, total=total, description=text)

    try:
        with working(what):
            yield advance
    finally:
        if bar is not None:
            bar.stop()


def _started_bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    label = TextColumn("{task.description}", markup=False)
    columns = (label, BarColumn(), TextColumn("{task.percentage:3.0f} %"), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task("", total=None)
    bar.start()
    return bar


@contextmanager
def no_echo() -> Iterator[None]:
    """Keeps typed keys out of the text that is being written; they are there for the next prompt."""
    try:
        import termios
    except ImportError:  # on Windows
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


class Color(StrEnum):
    """When to write colours. AUTO is on a terminal, unless NO_COLOR is set (https://no-color.org)."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


_color = Color.AUTO


def set_color(color: Color) -> None:
    """Sets for this process when colours are written: `--color`."""
    global _color
    _color = color
    if color is Color.NEVER:
        os.environ["NO_COLOR"] = "1"  # for tables, which rich draws


def always_colours() -> bool:
    """Returns whether colours are written even where stdout is not a terminal."""
    return _color is Color.ALWAYS


def has_colours(stream: TextIO | None = None) -> bool:
    """Returns whether a stream (stdout by default) gets colours."""
    if _color is not Color.AUTO:
        return always_colours()
    if os.environ.get("NO_COLOR"):
        return False
    return (stream or sys.stdout).isatty() and os.environ.get("TERM") != "dumb"


def dim(text: str, stream: TextIO | None = None) -> str:
    """Returns the text in a faint style, if the stream has colours."""
    return f"\x1b[2m{text}\x1b[22m" if has_colours(stream) else text


def wrapped(text: str, stream: TextIO | None = None) -> str:
    """Returns a text with its lines broken between words, if the stream (stdout by default) is a terminal.
    Parts that are separated by " · " are kept together where there is room."""
    if not (stream or sys.stdout).isatty():
        return text
    import re
    import shutil
    import textwrap

    width = max(20, shutil.get_terminal_size().columns - 1)
    lines = []
    for line in text.split("\n"):
        parts = [
            part.replace(" ", "\u00a0") if cell_width(part) < width else part for part in line.split(" · ")
        ]
        kept = " · ".join(parts) if len(parts) > 1 else line
        kept = re.sub(r"(?<!\S)(['“]) ", "\\1\u00a0", kept)  # a quotation that begins with a space
        broken = textwrap.wrap(kept, width, break_on_hyphens=False, replace_whitespace=False)
        lines.append("\n".join(broken).replace("\u00a0", " "))
    return "\n".join(lines)


def print_text(text: str) -> None:
    """Prints a text that a model wrote: to a pipe or a file as it is, on a terminal with control characters
    shown. A line end is added if it has none."""
    shown = visible(plain_lines(text)) if sys.stdout.isatty() else text
    print(shown, end="" if shown.endswith("\n") else "\n")


def plain_lines(text: str) -> str:
    """Returns a text with line ends as a terminal has them."""
    return text.replace("\r\n", "\n")


def print_json(value: object) -> None:
    """Prints a value as JSON, indented on a terminal."""
    print(json_text(value, indent=2 if sys.stdout.isatty() else None))


def print_result(value: object, text: object, as_json: bool) -> None:
    """Prints a result: the value as JSON, or the text."""
    if as_json:
        print_json(value)
    else:
        print(text)


def print_notes(notes: Iterable[str]) -> None:
    """Prints, on stderr, what has changed since a run was made."""
    for note in notes:
        print(f"glassloop: {visible(note, newlines=False)}", file=sys.stderr)


def json_text(value: object, indent: int | None = None) -> str:
    """Returns a value as JSON in which characters that would control a terminal are escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    return STEERING.sub(lambda match: json.dumps(match[0])[1:-1], text)


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    fold: Sequence[str] = (),
    cut: Sequence[str] = (),
    bold: int | None = None,
    styles: Mapping[str, str] | None = None,
) -> None:
    """Prints a table, with lines and styles on a terminal and in plain columns elsewhere.

    `right` names the columns that are aligned to the right. Where there is no room, columns in `fold` take
    several lines and columns in `cut` are shortened. `bold` is the number of a row, `styles` has the style of
    cells by their text. Control characters in cells are shown.
    """
    header, right, fold, cut = (
        [visible(name, newlines=False) for name in names] for names in (header, right, fold, cut)
    )
    rows = [[visible(cell, newlines=False) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        print(PlainTable(header, rows, right))
        return
    widths = [max(map(cell_width, column)) for column in zip(header, *rows, strict=True)]
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    taken = sum(width for title, width in zip(header, widths, strict=True) if title not in cut)
    most = max(6, (console.width - taken - 2 * len(header)) // max(1, len(cut)))
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
        cells_of_row = [Text(cell, (styles or {}).get(cell, "")) for cell in row]
        table.add_row(*cells_of_row, style="bold" if number == bold else "")
    console.print(table)
