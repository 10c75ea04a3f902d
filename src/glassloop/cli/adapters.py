"""The adapters of `--adapter [NAME=]PATH`, which are loaded with the model of the command."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from glassloop.errors import GlassloopError
from glassloop.util.shown import shown

if TYPE_CHECKING:
    from glassloop.api.llm import LLM

_waiting: dict[str, str] = {}  # the paths of this command's adapters, by name, until the model is loaded


def remember_adapters(texts: Iterable[str]) -> list[str]:
    """Returns the names of adapters given as [NAME=]PATH, and remembers their paths until `load_adapters`.
    Without a name, it is the last part of the path."""
    _waiting.clear()
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals:
            path = text
            last = Path(path).resolve()
            name = re.sub(r"[^A-Za-z0-9._-]+", "-", last.name if last.is_dir() else last.stem)[:64]
        if not path or not Path(path).exists():
            raise GlassloopError.about("--adapter", f"is {shown(text)}; [NAME=]PATH is expected")
        if name in _waiting:
            raise GlassloopError.about("--adapter", f"has the name {shown(name)} twice")
        _waiting[name] = path
    return list(_waiting)


def take_adapters() -> dict[str, str]:
    """Returns the paths of the command line's adapters, by name, and forgets them."""
    paths = dict(_waiting)
    _waiting.clear()
    return paths


def load_adapters(llm: LLM, paths: dict[str, str]) -> None:
    """Loads adapters beside the model, each under its name."""
    for name, path in paths.items():
        llm.load_adapter(name, path)
