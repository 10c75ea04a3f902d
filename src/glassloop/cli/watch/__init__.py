"""`glassloop watch`: a run on the whole screen, token by token, live or recorded."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassloop.cli.diffusion import DiffusionFlags
from glassloop.cli.flags import Only, takes_flags
from glassloop.cli.options import DEFAULT_MODEL, AnyModel, EngineFlags, Keep
from glassloop.cli.run_model import model_of
from glassloop.cli.sampling_flags import sampling_options
from glassloop.cli.stored_runs import complete_run, find_runs, names_run
from glassloop.decode.defaults import with_defaults
from glassloop.decode.sampling import Sampling
from glassloop.errors import GlassloopError

if TYPE_CHECKING:
    from glassloop.cli.watch.player import Player
    from glassloop.decode.diffusion import Diffusion
    from glassloop.engine.language_model import LanguageModel
    from glassloop.record.run import Run

_ALTERNATIVES = 10  # recorded with each token of a new run, by default


@takes_flags(unset=True)
def watch(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROMPT|RUN|FILE]",
            help="A text to continue, a run in the store, or a .glass file. Default: the last run.",
            autocompletion=complete_run,
            show_default=False,
        ),
    ] = None,
    *,
    model: AnyModel = None,
    store: Keep = True,
    masks: DiffusionFlags,
    engine: Annotated[EngineFlags, Only("model_defaults", "plugin", "upstream", "upstream_key_env", "holes")],
    **options: Any,
) -> None:
    """Look at a run on the whole screen: its text, the alternatives, the stages, its forks. A text that was
    written by diffusion is shown pass by pass.

    For a recorded run, the options are those of its forks.
    """
    from importlib.util import find_spec

    if find_spec("textual") is None:
        raise GlassloopError("watch needs textual: pip install 'glassloop[tui]'")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise GlassloopError("watch needs a terminal; 'glassloop runs show' works in a pipe")
    engine.load_plugins()
    overrides = sampling_options(options)
    Sampling.from_dict(overrides)
    if not masks.diffusion and masks.fill:
        raise GlassloopError("--fill is for --diffusion, which is not given")
    filling = masks.filling
    if masks.diffusion and engine.upstream is not None:
        raise GlassloopError("--diffusion is given; --upstream is not expected with it")
    run = None if masks.diffusion else _recorded(what)
    if masks.diffusion or (run is not None and not run.origin.in_order):
        _watch_passes(what, run, model, engine, filling, overrides, store)
        return
    if engine.holes is not None:
        raise GlassloopError("--holes is for a text that is written by diffusion, which this one is not")
    llm: LanguageModel
    if engine.upstream is not None:
        llm = engine.connect(model or (run.model if run else None))
    else:
        llm = engine.load(model or _model(what, run))
    from glassloop.cli.watch.app import WatchApp

    with llm:
        if run is None:
            sampling = with_defaults({"logprobs": _ALTERNATIVES, **overrides}, llm.default_sampling)
            request = llm.prepare(what or "", sampling)
            app = WatchApp(llm, request.runs[0], request, store=store)
        else:
            run.attach(llm)
            app = WatchApp(llm, run, changes=overrides, store=store)
        _show(app)


def _watch_passes(
    what: str | None,
    run: Run | None,
    model: str | None,
    engine: EngineFlags,
    filling: Diffusion,
    overrides: dict[str, Any],
    store: bool,
) -> None:
    """Shows a text that was written by diffusion, or, without a run, writes one."""
    from glassloop.cli.watch.passes import WatchPasses
    from glassloop.diffuse.write import DiffusionRequest

    if run is None and not what:
        raise GlassloopError("--diffusion is given without a prompt; a text to continue is expected")
    if run is not None and overrides:
        name = next(iter(overrides)).replace("_", "-")
        raise GlassloopError(f"--{name} is given; a run that was written by diffusion cannot be forked")
    if engine.upstream is not None:
        raise GlassloopError("--upstream is given; this run was written by diffusion, by a model of its own")
    with engine.load(model or _model(what, run)) as llm:
        if run is None:
            options = {"logprobs": _ALTERNATIVES, **overrides, "diffusion": filling}
            request = llm.prepare(what or "", with_defaults(options, llm.default_sampling))
            assert isinstance(request, DiffusionRequest)
            app = WatchPasses(llm, request.runs[0], request, store=store)
        else:
            run.attach(llm)
            app = WatchPasses(llm, run)
        _show(app)


def _show(app: Player) -> None:
    """Runs an app until its screen is closed."""
    app.run()
    app.finish()
    if app.return_code:
        raise typer.Exit(app.return_code)


def _model(what: str | None, run: Run | None) -> str:
    return DEFAULT_MODEL if run is None else model_of(what or "last", run)


def _recorded(what: str | None) -> Run | None:
    """Returns the run that the argument names, or None if it is a prompt."""
    name = "last" if what is None else what
    return find_runs(name)[0] if names_run(name) else None
