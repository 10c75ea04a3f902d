"""What the commands of `glassloop train` have in common: flags for the settings of a run, and for output."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from glassloop.train.config import options, read_config


def given_settings(parsed: argparse.Namespace, left_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns the settings that were given as flags, by name."""
    names = [each.name for each, _, _ in options() if each.name not in left_out]
    return {name: getattr(parsed, name) for name in names if getattr(parsed, name) is not None}


def config_file(parsed: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings of the file that `--config` names."""
    return read_config(Path(parsed.config)) if parsed.config else {}


def add_flag(group: Any, name: str, kind: type, several: bool, default: Any, help: str) -> None:
    """Adds the flag of a setting."""
    flag = f"--{name.replace('_', '-')}"
    shown = " ".join(default) if several else "yes" if default is True else default
    if default not in (None, "", (), False):
        help += f" (default: {shown})"
    help = help.replace("%", "%%")
    # The default is None, so that a flag that is not given leaves a preset's value.
    if kind is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=help)
    else:
        metavar = {int: "N", float: "X", str: "PATH" if name in ("data", "validation") else "NAME"}[kind]
        group.add_argument(
            flag, type=kind, nargs="+" if several else None, default=None, metavar=metavar, help=help
        )


def add_output(command: argparse.ArgumentParser) -> None:
    """Adds the flags that say what is printed."""
    command.add_argument("--quiet", action="store_true", help="Show no progress.")
    command.add_argument("--json", action="store_true", help="Print the result as JSON.")
