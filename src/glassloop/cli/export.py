"""`glassloop export`: a run as a page that opens anywhere, or as a file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glassloop.cli import loading
from glassloop.cli.options import AnyModel, Json, Ops
from glassloop.cli.run_model import model_of
from glassloop.cli.stored_runs import Name, find_runs
from glassloop.cli.terminal import print_result, visible
from glassloop.errors import GlassloopError

_LENSES = ("layers", "attention")


def export(
    name: Name,
    html: Annotated[
        Path, typer.Option("--html", metavar="FILE", help="The page to write.", show_default=False)
    ],
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain",
            "-e",
            metavar="N,N|all",
            help="Add the explanations of these tokens, counted from 0, or of all.",
        ),
    ] = None,
    lens: Annotated[
        list[str] | None,
        typer.Option(
            "--lens",
            "-L",
            metavar="LENS:N",
            help="Add a lens for a token of the answer: layers:3 or attention:3; may be repeated.",
        ),
    ] = None,
    tree: Annotated[
        bool, typer.Option("--tree/--no-tree", help="Whether to add the run's forks and samples.")
    ] = True,
    model: AnyModel = None,
    ops: Ops = None,
    as_json: Json = False,
) -> None:
    """Write a run as one HTML page that opens anywhere, without a network: text, tree, and how each token was
    chosen.

    Explanations and lenses are computed by the model; without them none is loaded.
    """
    run = find_runs(name)[0]
    wanted, lenses = _places(explain, len(run.tokens)), [_lens(each, len(run.tokens)) for each in lens or ()]
    explanations, extras = {}, []
    if wanted or lenses:
        llm = loading.load(model or model_of(name, run), ops)
        run.attach(llm)
        explanations = {at: run.explain(at) for at in wanted}
        for kind, at in lenses:
            extras.append(getattr(llm.lens, kind)(run, len(run.prompt_ids) + at))
    run.save_html(html, explanations=explanations, extras=extras, tree=tree)
    size = html.stat().st_size
    text = visible(f"{html}: {size:,} bytes", newlines=False)
    print_result({"run": run.id, "path": str(html), "size": size}, text, as_json)


def _places(names: str | None, count: int) -> list[int]:
    """Returns the tokens that `--explain` names."""
    if names is None:
        return []
    if names == "all":
        return list(range(count))
    return [_place("--explain", part.strip(), count) for part in names.split(",")]


def _lens(text: str, count: int) -> tuple[str, int]:
    kind, _, place = text.partition(":")
    if kind not in _LENSES:
        raise GlassloopError(f"--lens is {text!r}; layers:N or attention:N is expected", field="lens")
    return kind, _place("--lens", place, count)


def _place(option: str, name: str, count: int) -> int:
    if name.isascii() and name.isdigit() and len(name) < 10 and int(name) < count:
        return int(name)
    raise GlassloopError(f"{option} names the token {name!r}; a number from 0 to {count - 1} is expected")
