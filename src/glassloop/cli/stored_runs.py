"""Runs by name: a `.glass` file, an id in the store or on a server; and keeping runs in the store."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glassloop.cli.arguments import is_file
from glassloop.cli.terminal import visible
from glassloop.errors import GlassloopError, TraceError

if TYPE_CHECKING:
    from glassloop.cli.remote import RemoteServer
    from glassloop.record.run import Run

NAME_HELP = (
    "A .glass file, or a run in the store: its id, the beginning of it, the id of a server's answer"
    " (chatcmpl-…), or 'last'."
)


def complete_run(start: str) -> list[str]:
    from glassloop.record.store.store import Store

    return [name for name in ["last", *(entry.id for entry in Store().list(50))] if name.startswith(start)]


Name = Annotated[
    str, typer.Argument(metavar="FILE|RUN", help=NAME_HELP, autocompletion=complete_run, show_default=False)
]

Which = Annotated[
    str,
    typer.Option(
        "--run", metavar="ID", help="If the file has several runs: the id of one, or its first characters."
    ),
]


def find_runs(name: str, server: RemoteServer | None = None) -> list[Run]:
    """Returns all runs of a file, or the one in the store or on a server."""
    from glassloop.record.format.glass_file import read
    from glassloop.record.store.store import Store

    if is_path(name):
        return read(name)
    return [Store().get(name) if server is None else server.run(name)]


def found_as(name: str, run: Run, server: RemoteServer | None) -> str:
    """Returns the name that `model_of` and `prompt_text` take for a run: a run of a server is trusted as
    little as that of a file."""
    return name if server is None else f"{run.id}.glass"


def names_run(text: str) -> bool:
    """Returns whether an argument that may be a prompt names a run: a .glass file, an id of at least 8
    digits, the id of an answer, or "last"."""
    from glassloop.record.run_name import is_run_name

    is_glass = text.endswith(".glass") and (is_file(Path(text)) or not any(map(str.isspace, text)))
    return is_glass or is_run_name(text)


def note_name(text: str) -> None:
    """Notes on stderr that a text which is about to be continued is the name of a file or of a run, since its
    contents may be meant."""
    from glassloop.record.store.store import Store

    if is_file(Path(text)):
        what = "a file"
    elif names_run(text):
        try:
            Store().get(text)
        except GlassloopError:
            return
        what = "a run"
    else:
        return
    shown = visible(text[:80], newlines=False)
    instead = "compare, explain and fork take a run" if names_run(text) else "'-' reads a prompt from stdin"
    print(
        f"glassloop: the prompt {shown!r} is the name of {what}, and is continued as a text; {instead}",
        file=sys.stderr,
    )


def is_path(name: str) -> bool:
    """Returns whether the name of a run is that of a file."""
    return is_file(Path(name)) or name.endswith(".glass") or os.sep in name


def find_run(name: str, which: str, server: RemoteServer | None = None) -> Run:
    """Returns the first run of a file, the store or a server whose id begins with `which`."""
    from glassloop.record.run_name import run_id

    runs = find_runs(name, server)
    for run in runs:
        if run.id.startswith(run_id(which)):
            return run
    ids = ", ".join([run.id[:8] for run in runs[:5]]) + (", …" if len(runs) > 5 else "")
    raise TraceError(f"--run is {which}; {name} has {ids}")


def keep(runs: list[Run]) -> bool:
    """Writes runs to the user's store and returns whether that worked. A failure is a notice, not an error:
    the text has been printed already."""
    from glassloop.record.store.store import Store

    try:
        Store().add(*runs)
    except GlassloopError as error:
        print(f"glassloop: the run was not kept: {visible(str(error), newlines=False)}", file=sys.stderr)
        return False
    return True
