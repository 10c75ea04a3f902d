"""`glassloop serve`: a model over HTTP, for OpenAI's clients, the studio and other programs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from glassloop.cli.options import DEFAULT_MODEL, Draft, KVMemory, Model, ModelDefaults
from glassloop.cli.terminal import working

_ACCESS, _LIMITS = "Address and access", "Limits"


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
    keep: Annotated[int, typer.Option(help="How many finished runs are kept; 0 for none.", min=0)] = 1000,
    store: Annotated[
        Path | None, typer.Option(help="The file that keeps them, for this server alone. Default: in memory.")
    ] = None,
    model_defaults: ModelDefaults = True,
    kv_memory: KVMemory = None,
    draft: Draft = None,
    running: Annotated[
        int,
        typer.Option(metavar="N", help="The most requests that run at once.", min=1, rich_help_panel=_LIMITS),
    ] = 64,
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
        bool, typer.Option("--log-prompts/--no-log-prompts", help="Whether to log prompts and answers.")
    ] = False,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SITE",
            help="Let pages of this site use the API from a browser; may be repeated.",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
) -> None:
    """Serve a model over HTTP: an OpenAI-compatible API, the API for runs, and the studio."""
    from glassloop.cli.kept import drafter
    from glassloop.engine.memory import parse_bytes
    from glassloop.server.operation.settings import Settings

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
    if store is not None and keep:
        from glassloop.trace.store import Store

        tested = Store(store)  # before the model is loaded, which may take a while
        tested.check()
        tested.close()
    with working(f"Loading {model}"):
        from glassloop.engine.llm import LLM
        from glassloop.server.serve import serve as run

        llm = LLM(model, kv_memory=kv_memory, draft=drafter(draft), most_running=running, most_waiting=queue)
    if not model_defaults:
        from glassloop.decode.sampling import Sampling

        llm.default_sampling = Sampling()
    run(llm, settings)
