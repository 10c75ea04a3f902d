"""`glassloop serve`: the model over HTTP, for OpenAI's clients, for the studio and for anyone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from glassloop.model.registry import DEFAULT_MODEL


def serve(
    model: Annotated[
        str, typer.Option("--model", "-m", help="A name, a .gguf file or a folder with safetensors.")
    ] = DEFAULT_MODEL,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes any that is free.", min=0, max=65535)] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(help="Ask for this key; several are allowed. Or GLASSLOOP_API_KEY, parted by commas."),
    ] = None,
    open_to_all: Annotated[
        bool, typer.Option("--open", help="Listen beyond this machine without a key.")
    ] = False,
    keep: Annotated[
        int, typer.Option(help="Runs that are kept once they have ended; 0 for none.", min=0)
    ] = 1000,
    store: Annotated[
        Path | None, typer.Option(help="A file of the server's own that keeps them; in memory if absent.")
    ] = None,
    kv_memory: Annotated[
        str | None, typer.Option(help="For keys and values: 2GB; a quarter of the free memory if absent.")
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(help="A smaller model that guesses ahead, or 'off'."),
    ] = None,
    running: Annotated[int, typer.Option(help="Requests that are computed together, at most.", min=1)] = 64,
    queue: Annotated[int, typer.Option(help="Requests that may wait; more are refused (429).", min=1)] = 256,
    timeout: Annotated[float, typer.Option(help="Seconds for one request.", min=0.001)] = 600.0,
    grace: Annotated[float, typer.Option(help="Seconds for what runs when it is told to end.", min=0)] = 30.0,
    max_body: Annotated[str, typer.Option(help="The largest body of a request.")] = "8MB",
    max_prompt: Annotated[
        int | None, typer.Option(help="Tokens of the longest prompt; the model's context if absent.", min=1)
    ] = None,
    log_prompts: Annotated[bool, typer.Option(help="Log what is asked and answered, too.")] = False,
) -> None:
    """Serve a model over HTTP: OpenAI's protocol, the runs with their reasons, and the studio."""
    from glassloop.cli.kept import drafter
    from glassloop.cli.terminal import working
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
    )
    if store is not None and keep:
        from glassloop.trace.store import Store

        tested = Store(store)  # before the model is loaded, which may take long
        tested.check()
        tested.close()
    with working(f"Loading {model}"):
        from glassloop.engine.llm import LLM
        from glassloop.server.serve import serve as run

        llm = LLM(model, kv_memory=kv_memory, draft=drafter(draft), most_running=running, most_waiting=queue)
    run(llm, settings)
