"""`glassloop replay`: compute recorded runs once more and say whether they come out the same, bit for bit."""

from __future__ import annotations

from typing import Annotated

import typer

from glassloop.cli.kept import Name
from glassloop.cli.options import Json, complete_model


def replay(
    name: Name,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Where its model is now.", autocompletion=complete_model),
    ] = None,
    first: Annotated[int, typer.Option("--from", min=0, help="Begin at this token.")] = 0,
    ops: Annotated[str | None, typer.Option("--ops", help="An op set: native or reference.")] = None,
    any_model: Annotated[
        bool, typer.Option("--any-model", help="Another model is no error; see what it would say.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compute a recorded run once more. Exit code 0: identical; 1: it differs; 2: it cannot be said."""
    from glassloop.cli.kept import find_runs, load, model_of
    from glassloop.cli.terminal import print_json, visible

    runs = find_runs(name)
    llm = load(model or model_of(name, runs[0]), ops)
    verdicts = [llm.replay(run, first=first, strict=not any_model) for run in runs]
    if as_json:
        plain = [{"run": run.id, **told.to_dict()} for run, told in zip(runs, verdicts, strict=True)]
        print_json(plain[0] if len(plain) == 1 else plain)
    else:
        for run, verdict in zip(runs, verdicts, strict=True):
            own = f"{run.id[:8]}: " if len(runs) > 1 else ""
            print(visible(own + verdict.sentence, newlines=False))
    if not all(verdicts):
        raise typer.Exit(1)
