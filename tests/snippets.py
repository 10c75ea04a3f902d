"""The code blocks of the docs: what a reader would type, and what the page shows as the answer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
SHELL = ("", "sh", "bash", "shell", "console")
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<kind>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL
)
# Programs that begin a command in a block that shows no prompt.
_PROGRAM = re.compile(r"(glassloop|curl|make|python|pip|cd|source|kubectl|node|PYTHON\w*=\S+) ")


class Snippet(NamedTuple):
    """A command of a shell block, or a whole Python block."""

    page: str
    line: int  # of the page, from 1
    code: str
    shown: str  # the answer on the page; empty: none is shown

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path, *kinds: str) -> list[tuple[int, str]]:
    """Returns the code blocks of these kinds, each with the number of its first line."""
    text = page.read_text(encoding="utf-8")
    return [
        (text[: block.start()].count("\n") + 2, block["code"])
        for block in FENCE.finditer(text)
        if block["kind"] in kinds
    ]


def shell_snippets(page: Path) -> list[Snippet]:
    """Returns the commands of a page. In a block with `$ ` before a command, all other lines are answers; in
    one that begins with a program, every line is a command."""
    name = page.relative_to(ROOT).as_posix()
    commands: list[Snippet] = []
    for first, code in blocks(page, *SHELL):
        lines = code.splitlines()
        prompts = any(line.startswith("$ ") for line in lines)
        if not prompts and not _PROGRAM.match(lines[0]):
            continue
        is_open = False  # whether the command goes on in the next line
        for number, line in enumerate(lines, first):
            if is_open:
                last = commands.pop()
                commands.append(last._replace(code=f"{last.code}\n{line}"))
            elif line.startswith("$ ") or not prompts:
                commands.append(Snippet(name, number, line.removeprefix("$ "), ""))
            else:
                last = commands.pop()
                commands.append(last._replace(shown=f"{last.shown}{line}\n"))
                continue
            is_open = _is_open(commands[-1].code)
    return [each for each in commands if each.code.strip() and not each.code.lstrip().startswith("#")]


def python_snippets(page: Path) -> list[Snippet]:
    """Returns the Python blocks of a page, each with what the `text` block right after it shows."""
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT).as_posix()
    found = list(FENCE.finditer(text))
    snippets = []
    for block, after in zip(found, [*found[1:], None][: len(found)], strict=True):
        if block["kind"] != "python":
            continue
        shown = ""
        if after is not None and after["kind"] == "text" and after.start() - block.end() < 40:
            shown = after["code"]
        snippets.append(Snippet(name, text[: block.start()].count("\n") + 2, block["code"], shown))
    return snippets


def _is_open(command: str) -> bool:
    """Whether a command goes on: it ends with a backslash or within single quotes."""
    return command.endswith("\\") or command.count("'") % 2 == 1
