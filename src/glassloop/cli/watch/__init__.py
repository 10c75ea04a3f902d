"""`glassloop watch`: a run on the whole screen, token by token, live or recorded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassloop.cli.diffusion import Diffused, Filling, Holes, parse_filling
from glassloop.cli.kept import complete_run
from glassloop.cli.options import (
    DEFAULT_MODEL,
    UPSTREAM_KEY,
    AnyModel,
    Keep,
    ModelDefaults,
    Plugins,
    Upstream,
    UpstreamKey,
    given,
    load_plugins,
    takes_sampling,
)
from glassloop.errors import GlassloopError

if TYPE_CHECKING:
    from glassloop.decode.diffusion import Diffusion
    from glassloop.engine.language_model import LanguageModel
    from glassloop.record.run import Run

_ALTERNATIVES = 10  # recorded with each token of a new run, by default


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
    model: AnyModel = None,
    model_defaults: ModelDefaults = True,
    store: Keep = True,
    plugin: Plugins = None,
    upstream: Upstream = None,
    upstream_key_env: UpstreamKey = UPSTREAM_KEY,
    diffusion: Diffused = False,
    fill: Filling = None,
    holes: Holes = None,
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
    from glassloop.cli.kept import load, load_upstream, model_of
    from glassloop.decode.defaults import with_defaults
    from glassloop.decode.sampling import Sampling

    load_plugins(plugin)
    asked = given(options)
    Sampling.from_dict(asked)
    if not diffusion and fill:
        raise GlassloopError("--fill is for --diffusion, which is not given")
    filling = parse_filling(fill)
    if diffusion and upstream is not None:
        raise GlassloopError("--diffusion is given; --upstream is not expected with it")
    run = None if diffusion else _recorded(what)
    if diffusion or (run is not None and run.diffusion is not None):
        _watch_passes(what, run, model, model_defaults, filling, holes, asked, store)
        return
    engine: LanguageModel
    if upstream is None:
        engine = load(
            model or (model_of(what or "last", run) if run else DEFAULT_MODEL), model_defaults=model_defaults
        )
    else:
        engine = load_upstream(
            upstream, model or (run.model if run else None), upstream_key_env, plugin=plugin
        )
    from glassloop.cli.watch.app import WatchApp

    with engine as llm:
        if run is None:
            sampling = with_defaults({"logprobs": _ALTERNATIVES, **asked}, llm.default_sampling)
            request = llm.prepare(what or "", sampling)
            app = WatchApp(llm, request.runs[0], request, store=store)
        else:
            run.attach(llm)
            app = WatchApp(llm, run, changes=asked, store=store)
        app.run()
        app.finish()
    if app.return_code:
        raise typer.Exit(app.return_code)


takes_sampling(watch, unset=True)


def _watch_passes(
    what: str | None,
    run: Run | None,
    model: str | None,
    model_defaults: bool,
    filling: Diffusion,
    holes: Path | None,
    asked: dict[str, Any],
    store: bool,
) -> None:
    """Shows a text that was written by diffusion, or, without a run, writes one."""
    from glassloop.cli.kept import load, model_of
    from glassloop.cli.watch.passes import WatchPasses
    from glassloop.decode.defaults import with_defaults
    from glassloop.diffuse.write import DiffusionRequest

    if run is None and not what:
        raise GlassloopError("--diffusion is given without a prompt; a text to continue is expected")
    if run is not None and asked:
        raise GlassloopError(
            f"--{next(iter(asked)).replace('_', '-')} is given; a run that was written by diffusion cannot be"
            " forked"
        )
    name = model or (model_of(what or "last", run) if run is not None else DEFAULT_MODEL)
    with load(name, model_defaults=model_defaults, holes=holes) as llm:
        if run is None:
            options = {"logprobs": _ALTERNATIVES, **asked, "diffusion": filling}
            request = llm.prepare(what or "", with_defaults(options, llm.default_sampling))
            assert isinstance(request, DiffusionRequest)
            app = WatchPasses(llm, request.runs[0], request, store=store)
        else:
            run.attach(llm)
            app = WatchPasses(llm, run)
        app.run()
        app.finish()
    if app.return_code:
        raise typer.Exit(app.return_code)


def _recorded(what: str | None) -> Run | None:
    """Returns the run that the argument names, or None if it is a prompt."""
    from glassloop.cli.kept import find_runs, names_run

    named = "last" if what is None else what
    return find_runs(named)[0] if names_run(named) else None
