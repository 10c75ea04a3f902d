"""`--adapter [NAME=]PATH`: the adapters that a command loads with its model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glassloop.cli.help import MODEL
from glassloop.errors import GlassloopError
from glassloop.util.shown import shown

if TYPE_CHECKING:
    from glassloop.api.llm import LLM

Adapters = Annotated[
    list[str] | None,
    typer.Option(
        "--adapter",
        metavar="[NAME=]PATH",
        help="Load this LoRA adapter, a folder of PEFT or a file, under a name; may be repeated.",
        show_default=False,
        rich_help_panel=MODEL,
    ),
]
_given: dict[str, str] = {}  # the paths of this command's adapters, by name, until the model is loaded


def remember(texts: Iterable[str]) -> list[str]:
    """Returns the names of adapters given as [NAME=]PATH; `load_given` loads these. Without a name, it is the
    last part of the path."""
    _given.clear()
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals:
            path = text
            last = Path(path).resolve()
            name = re.sub(r"[^A-Za-z0-9._-]+", "-", last.name if last.is_dir() else last.stem)[:64]
        if not path or not Path(path).exists():
            raise GlassloopError.about("--adapter", f"is {shown(text)}; [NAME=]PATH is expected")
        if name in _given:
            raise GlassloopError.about("--adapter", f"has the name {shown(name)} twice")
        _given[name] = path
    return list(_given)


def load_given(llm: LLM) -> None:
    """Loads the adapters of the command line beside the model."""
    for name, path in take_given().items():
        llm.load_adapter(name, path)


def take_given() -> dict[str, str]:
    """Returns the paths of the command line's adapters, by name, and forgets them."""
    found = dict(_given)
    _given.clear()
    return found
