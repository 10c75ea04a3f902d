"""`glassloop serve`: a model over HTTP, for OpenAI's clients, the studio and other programs."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from glassloop.cli.help import OUTPUT
from glassloop.cli.options import (
    DEFAULT_MODEL,
    Draft,
    KVMemory,
    Model,
    ModelDefaults,
    Ops,
    Plugins,
    load_plugins,
)
from glassloop.cli.terminal import working
from glassloop.errors import GlassloopError, TraceError

if TYPE_CHECKING:
    from glassloop.server.operation.settings import Settings

_ACCESS, _LIMITS = "Address and access", "Limits"
_IN_MEMORY = (
    "runs are kept in memory only, until the server ends: others can reach it, and would see the runs in "
    "your own store. To keep them, name a file: --store FILE"
)


def serve(
    model: Model = DEFAULT_MODEL,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen on.", rich_help_panel=_ACCESS)
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            metavar="N", help="The port; 0 takes any free one.", min=0, max=65535, rich_help_panel=_ACCESS
        ),
    ] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Require this key; may be repeated. Or set GLASSLOOP_API_KEY, with commas between keys.",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    open_to_all: Annotated[
        bool, typer.Option("--open", help="Let other machines in without a key.", rich_help_panel=_ACCESS)
    ] = False,
    keep: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="How many finished runs of this server to keep; 0 for none. Runs of other programs stay."
            " Default: all in the store, 1000 in memory.",
            min=0,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|URL",
            help="The file that keeps the runs, or postgresql://… for a database that many servers share."
            " Default: the store that all commands use.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    no_store: Annotated[
        bool, typer.Option("--no-store", help="Keep runs in memory only.", rich_help_panel=OUTPUT)
    ] = False,
    model_defaults: ModelDefaults = True,
    ops: Ops = None,
    kv_memory: KVMemory = None,
    draft: Draft = None,
    running: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The most requests that run at once. Default: 64, on a GPU 256.",
            min=1,
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    queue: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="The most requests that wait; others get status 429.",
            min=1,
            rich_help_panel=_LIMITS,
        ),
    ] = 256,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="The longest time for one request.", min=0.001, rich_help_panel=_LIMITS
        ),
    ] = 600.0,
    grace: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="At shutdown, how long to wait for running requests.",
            min=0,
            rich_help_panel=_LIMITS,
        ),
    ] = 30.0,
    max_body: Annotated[
        str, typer.Option(metavar="SIZE", help="The largest request body.", rich_help_panel=_LIMITS)
    ] = "8MB",
    max_prompt: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The longest prompt, in tokens. Default: the model's context.",
            min=1,
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    log_prompts: Annotated[
        bool,
        typer.Option(
            "--log-prompts/--no-log-prompts",
            help="Whether to log prompts and answers.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SITE",
            help="Let pages of this site use the API from a browser; may be repeated.",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Serve a model over HTTP: an OpenAI-compatible API, the API for runs, and the studio."""
    from glassloop.cli.kept import drafter
    from glassloop.engine.memory import parse_bytes
    from glassloop.server.operation.settings import Settings

    load_plugins(plugin)
    keys = api_key or [key for key in os.environ.get("GLASSLOOP_API_KEY", "").split(",") if key]
    settings = Settings(
        model,
        host,
        port,
        tuple(keys),
        open_to_all,
        keep,
        store,
        parse_bytes(max_body, "max-body"),
        max_prompt,
        timeout=timeout,
        grace=grace,
        log_prompts=log_prompts,
        allow_origins=tuple(allow_origin or ()),
    )
    if store is not None and no_store:
        raise GlassloopError("--store and --no-store are both given; one of them at most is expected")
    note = "runs are kept in memory only"
    if not no_store and keep != 0:  # before the model is loaded, which may take a while
        settings, note = _with_store(settings)
    with working(f"Loading {model}"):
        from glassloop.engine.llm import LLM
        from glassloop.server.serve import serve as run

        llm = LLM(
            model, ops, kv_memory=kv_memory, draft=drafter(draft), most_running=running, most_waiting=queue
        )
    if not model_defaults:
        from glassloop.decode.sampling import Sampling

        llm.default_sampling = Sampling()
    run(llm, settings, note)


def _with_store(settings: Settings) -> tuple[Settings, str]:
    """Returns the settings with a store that can be used, and a note on where runs are kept. Only a store
    that was asked for must be usable."""
    from dataclasses import replace

    from glassloop.trace.store import Store, default_location

    location = settings.store or default_location()
    if settings.store is None and not settings.is_local:
        return settings, _IN_MEMORY
    tested = None
    try:
        tested = Store(location)
        tested.check()
    except TraceError as error:
        if settings.store is not None:
            raise
        return settings, f"runs are kept in memory only: {error}"
    finally:
        if tested is not None:
            with suppress(TraceError):
                tested.close()
    return replace(settings, store=location), f"runs are kept in {tested.name}"
