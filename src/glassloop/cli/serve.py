"""`glassloop serve`: a model over HTTP, for OpenAI's clients, the studio and other programs."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glassloop.cli.options import DEFAULT_MODEL, Draft, KVMemory, Model
from glassloop.cli.terminal import working
from glassloop.errors import GlassloopError, TraceError

if TYPE_CHECKING:
    from glassloop.server.operation.settings import Settings


def serve(
    model: Model = DEFAULT_MODEL,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes any free one.", min=0, max=65535)] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(help="Require this key; may be repeated. Or GLASSLOOP_API_KEY, separated by commas."),
    ] = None,
    open_to_all: Annotated[
        bool, typer.Option("--open", help="Listen beyond this machine without a key.")
    ] = False,
    keep: Annotated[
        int | None,
        typer.Option(
            help="How many finished runs of this server are kept; 0 for none. Runs of other programs stay."
            " Default: all in the store, 1000 in memory.",
            min=0,
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            help="The file that keeps the runs. Default: the one that all commands use.", show_default=False
        ),
    ] = None,
    no_store: Annotated[bool, typer.Option("--no-store", help="Keep runs in memory only.")] = False,
    kv_memory: KVMemory = None,
    draft: Draft = None,
    running: Annotated[int, typer.Option(help="How many requests run at once, at most.", min=1)] = 64,
    queue: Annotated[int, typer.Option(help="How many requests may wait; more get status 429.", min=1)] = 256,
    timeout: Annotated[float, typer.Option(help="The seconds that one request may take.", min=0.001)] = 600.0,
    grace: Annotated[
        float, typer.Option(help="The seconds that running requests have at shutdown.", min=0)
    ] = 30.0,
    max_body: Annotated[str, typer.Option(help="The size of the largest request body.")] = "8MB",
    max_prompt: Annotated[
        int | None, typer.Option(help="The tokens of the longest prompt. Default: the context.", min=1)
    ] = None,
    log_prompts: Annotated[bool, typer.Option(help="Log prompts and answers too.")] = False,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="Let pages of this site use the API from a browser; may be repeated."),
    ] = None,
) -> None:
    """Serve a model over HTTP: OpenAI's protocol, runs with their reasons, and the studio."""
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
    if store is not None and no_store:
        raise GlassloopError("--store and --no-store are both given; one of them at most is expected")
    note = "runs are kept in memory only"
    if not no_store and keep != 0:  # before the model is loaded, which may take a while
        settings, note = _with_store(settings)
    with working(f"Loading {model}"):
        from glassloop.engine.llm import LLM
        from glassloop.server.serve import serve as run

        llm = LLM(model, kv_memory=kv_memory, draft=drafter(draft), most_running=running, most_waiting=queue)
    run(llm, settings, note)


def _with_store(settings: Settings) -> tuple[Settings, str]:
    """Returns the settings with a store that can be used, and a note on where runs are kept. Only a store
    that was asked for must be usable."""
    from dataclasses import replace

    from glassloop.trace.store import Store, default_path

    path = settings.store or default_path()
    if settings.store is None and not settings.is_local:
        reason = "others can reach this server, and would see the runs of all commands"
        return settings, f"runs are kept in memory only: {reason}. --store names a file"
    tested = Store(path)
    try:
        tested.check()
    except TraceError as error:
        if settings.store is not None:
            raise
        return settings, f"runs are kept in memory only: {error}"
    finally:
        with suppress(TraceError):
            tested.close()
    return replace(settings, store=path), f"runs are kept in {path}"
