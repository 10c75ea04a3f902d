"""`glassloop replay`: computes recorded runs again and says whether they are the same, bit for bit."""

from __future__ import annotations

from typing import Annotated

import typer

from glassloop.cli.adapters import remember_adapters
from glassloop.cli.flags import Only, takes_flags
from glassloop.cli.options import EngineFlags, Json, RunModel
from glassloop.cli.run_model import model_of
from glassloop.cli.stored_runs import Name, find_runs
from glassloop.cli.terminal import print_result, visible


@takes_flags()
def replay(
    name: Name,
    *,
    model: RunModel = None,
    first: Annotated[
        int, typer.Option("--from", metavar="N", min=0, help="The first token to compare, from 0.")
    ] = 0,
    any_model: Annotated[
        bool, typer.Option("--any-model", help="Compare even if another model made the run.")
    ] = False,
    as_json: Json = False,
    engine: Annotated[EngineFlags, Only("ops", "plugin", "adapter", "holes")],
) -> None:
    """Compute a recorded run again and compare every number.

    The exit code is 0 if it is identical, 1 if it differs, and 2 if it could not be computed.
    """
    engine.load_plugins()
    remember_adapters(engine.adapter or ())
    runs = find_runs(name)
    for run in runs:
        run.check_computable()
    llm = engine.load(model or model_of(name, runs[0]))
    verdicts = [llm.replay(run, first=first, strict=not any_model) for run in runs]
    plain = [{"run": run.id, **verdict.to_dict()} for run, verdict in zip(runs, verdicts, strict=True)]
    lines = [visible(verdict.sentence, newlines=False) for verdict in verdicts]
    if len(runs) > 1:
        lines = [f"{run.id[:8]}: {line}" for run, line in zip(runs, lines, strict=True)]
    print_result(plain if len(plain) > 1 else plain[0], "\n".join(lines), as_json)
    if not all(verdicts):
        raise typer.Exit(1)
