"""`glassloop serve`: a model over HTTP, for OpenAI's clients, the studio and other programs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from glassloop.cli.options import DEFAULT_MODEL, Draft, KVMemory, Model, Ops
from glassloop.cli.terminal import working


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
    keep: Annotated[int, typer.Option(help="How many finished runs are kept; 0 for none.", min=0)] = 1000,
    store: Annotated[
        Path | None, typer.Option(help="The file that keeps them, for this server alone. Default: in memory.")
    ] = None,
    ops: Ops = None,
    kv_memory: KVMemory = None,
    draft: Draft = None,
    running: Annotated[
        int | None,
        typer.Option(help="How many requests run at once, at most. Default: 64, on a GPU 256.", min=1),
    ] = None,
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
    if store is not None and keep:
        from glassloop.trace.store import Store

        tested = Store(store)  # before the model is loaded, which may take a while
        tested.check()
        tested.close()
    with working(f"Loading {model}"):
        from glassloop.engine.llm import LLM
        from glassloop.server.serve import serve as run

        llm = LLM(
            model, ops, kv_memory=kv_memory, draft=drafter(draft), most_running=running, most_waiting=queue
        )
    run(llm, settings)
