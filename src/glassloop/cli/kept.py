"""Runs by name for the commands that look at them: a `.glass` file, or the id of a run in the store."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from glassloop.engine.llm import LLM
    from glassloop.trace.run import Run

NAME_HELP = "A .glass file, or a run in the store: its id, the beginning of it, or 'last'."


def complete_run(start: str) -> list[str]:
    from glassloop.trace.store import Store

    return [name for name in ["last", *(entry.id for entry in Store().list(50))] if name.startswith(start)]


Name = Annotated[
    str, typer.Argument(metavar="FILE|RUN", help=NAME_HELP, autocompletion=complete_run, show_default=False)
]


def find_runs(name: str) -> list[Run]:
    """All runs of a file, or the one in the store."""
    from glassloop.trace.file import read
    from glassloop.trace.store import Store

    return read(name) if _is_path(name) else [Store().get(name)]


def _is_path(name: str) -> bool:
    from pathlib import Path

    from glassloop.cli.options import is_file

    return is_file(Path(name)) or name.endswith(".glass") or os.sep in name


def model_of(name: str, run: Run) -> str:
    """The model that a run found by this name was made with, if it may be loaded without asking.

    A file, or a run that a server took from one, may name anything: only a model that is already here by its
    name, or the default one, is loaded for it. A file never decides what is downloaded or opened."""
    from pathlib import Path

    from glassloop.errors import RegistryError, TraceError
    from glassloop.model.registry import DEFAULT_MODEL, find
    from glassloop.model.registry.names import resolve
    from glassloop.trace.store import Store

    if run.model == DEFAULT_MODEL or not (_is_path(name) or Store().is_from_server(run.id)):
        return run.model
    try:
        if not isinstance(resolve(run.model), Path) and find(run.model) is not None:
            return run.model
    except RegistryError:
        pass
    raise TraceError(
        f"run {run.id[:8]} names the model {run.model[:200]!r}, which is not among those that were pulled;"
        " give the one to use: --model NAME"
    )


def find_run(name: str, which: str) -> Run:
    """The first of them, or the one whose id begins like this."""
    from glassloop.errors import TraceError

    runs = find_runs(name)
    for run in runs:
        if run.id.startswith(which):
            return run
    known = ", ".join([run.id[:8] for run in runs[:5]]) + (", …" if len(runs) > 5 else "")
    raise TraceError(f"--run is {which}; {name} has {known}")


def keep(runs: list[Run]) -> bool:
    """Put runs into the user's store. That this fails must not cost anybody a text that is already there."""
    from glassloop.errors import GlassloopError
    from glassloop.trace.store import Store

    try:
        Store().add(*runs)
    except GlassloopError as error:
        from glassloop.cli.terminal import visible

        print(f"glassloop: the run was not kept: {visible(str(error), newlines=False)}", file=sys.stderr)
        return False
    return True


def drafter(given: str | None) -> bool | str:
    """What `--draft` says: a model, or "off"; absent, guesses come from the text."""
    return True if given is None else False if given == "off" else given


def load(model: str, ops: str | None = None, kv_memory: str | None = None, draft: bool | str = True) -> LLM:
    from glassloop.cli.terminal import working

    with working(f"Loading {model}"):
        from glassloop.engine.llm import LLM

        return LLM(model, ops, kv_memory=kv_memory, draft=draft)
