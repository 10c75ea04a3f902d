"""Writes docs/commands.md, the reference of the command line, from the parsers themselves:

    python docs/assets/commands.py

A test compares the page with what this makes.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from glassloop.cli.main import app
from glassloop.train.commands import parser

PAGE = Path(__file__).parents[1] / "commands.md"
_SHARED = 4  # commands that have an option of the same name and help from which on it is described once
_START = """# The commands

This page is made from the parsers of the commands, so it has every option; `glassloop COMMAND --help` prints
the same in groups. [In the terminal](terminal.md) describes the commands with examples.
"""
Row = tuple[str, str, str]  # names, default, what it does


def commands(group: Any, name: str = "glassloop") -> Iterator[tuple[str, Any]]:
    """Yields the commands of a group and of the groups in it, each with its full name."""
    for word, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} {word}")
        elif not command.hidden:
            yield f"{name} {word}", command


def rows_of(command: Any) -> list[Row]:
    """Returns the arguments and options of a command."""
    return [
        _row(each) for each in command.params if not getattr(each, "hidden", False) and each.name != "help"
    ]


def _row(option: Any) -> Row:
    is_argument = option.param_type_name == "argument"
    names = (
        [str(option.metavar or option.name).upper()]
        if is_argument
        else [*option.opts, *option.secondary_opts]
    )
    value = "" if is_argument or getattr(option, "is_flag", False) else f" {_value(option)}"
    default = option.default
    plain = default if isinstance(default, str | int | float) and not isinstance(default, bool) else ""
    written = ", ".join(f"`{name}{value}`" for name in names).replace("|", "\\|")
    return written, f"`{plain}`" if plain != "" else "", _cell(option.help)


def _value(option: Any) -> str:
    return str(option.metavar or option.type.name).upper()


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|").replace("<", "&lt;")


def _table(rows: list[Row]) -> str:
    lines = ["| option | default | what it does |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {names} | {default} | {text} |" for names, default, text in rows)])


def page() -> str:
    """Returns the whole page."""
    every = [(name, command, rows_of(command)) for name, command in commands(typer.main.get_command(app))]
    counts = Counter(row for _, _, rows in every for row in rows)
    shared = sorted(row for row, count in counts.items() if count >= _SHARED and row[0].startswith("`-"))
    parts = [_START]
    for name, command, rows in every:
        if name == "glassloop train":
            parts.append(_train())
            continue
        own = [row for row in rows if row not in shared]
        also = [row[0].split(",")[0].split(" ")[0].strip("`") for row in rows if row in shared]
        parts.append(f"## {name}\n\n{_cell(command.help)}")
        if own:
            parts.append(_table(own))
        if also:
            listed = ", ".join(f"`{each}`" for each in sorted(also))
            parts.append(f"[Shared options](#options-that-commands-share): {listed}.")
    parts.append("## Options that commands share\n\n" + _table(shared))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _train() -> str:
    """Returns the part of `glassloop train`, whose parser is argparse's."""
    actions = parser()._actions
    (sub,) = [each for each in actions if isinstance(each, argparse._SubParsersAction)]
    lines = ["## glassloop train", "Train a model: from text, further on your own data, or an adapter."]
    helps = {choice.dest: choice.help for choice in sub._choices_actions}
    lines.append(
        _table([(f"`{name}`", "", _cell(helps.get(name))) for name in sub.choices]).replace(
            "option", "command", 1
        )
    )
    lines.append("The settings of `run`; those of `pretrain`, `finetune`, `lora` and `distil` are the same.")
    rows: list[Row] = []
    for action in sub.choices["run"]._actions:
        if action.dest in ("help", "out"):
            continue
        value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
        flags = ", ".join(f"`{flag}{value}`" for flag in action.option_strings)
        rows.append((flags, "", _cell((action.help or "").replace("%%", "%"))))
    lines.append(_table(rows))
    return "\n\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
