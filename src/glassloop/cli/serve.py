"""`glassloop serve`: a model over HTTP, for OpenAI's clients, the studio and other programs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glassloop.cli.adapters import Adapters, load_given, remember, take_given
from glassloop.cli.diffusion import Holes
from glassloop.cli.help import OUTPUT
from glassloop.cli.options import (
    DEFAULT_MODEL,
    UPSTREAM_KEY,
    Draft,
    KVMemory,
    Model,
    ModelDefaults,
    Ops,
    Plugins,
    Upstream,
    UpstreamKey,
    load_plugins,
)
from glassloop.cli.terminal import working
from glassloop.errors import GlassloopError, TraceError

if TYPE_CHECKING:
    from glassloop.cluster.options import AppOptions
    from glassloop.server.operation.settings import Settings

_ACCESS, _LIMITS, _CLUSTER = "Address and access", "Limits", "Replicas"
_IN_MEMORY = (
    "runs are kept in memory only, until the server ends: others can reach it, and would see the runs in "
    "your own store. To keep them, name a file: --store FILE"
)


def serve(
    model: Model = DEFAULT_MODEL,
    upstream: Upstream = None,
    upstream_key_env: UpstreamKey = UPSTREAM_KEY,
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
    separate_keys: Annotated[
        bool | None,
        typer.Option(
            "--separate-keys/--shared-cache",
            help="Whether keys share no cached prompts; by default they do not if there are several.",
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
    training: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Show the training runs in this folder in the studio: `glassloop train run FOLDER/NAME`.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
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
    adapter: Adapters = None,
    holes: Holes = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Compute with this many replicas, each a process with the model, on Ray Serve. A stream"
            " continues when its replica dies.",
            min=1,
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    most_replicas: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Add replicas up to this many while requests queue, and remove them later.",
            min=1,
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="RAY",
            help="The Ray cluster to join, such as auto or ray-head:6379. Default: one on this machine, for"
            " as long as the server runs.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="Serve this model too, by its name and with replicas of its own; may be repeated.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Threads of a replica. Default: the cores of this machine, shared by the replicas.",
            min=1,
            max=256,
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    gpus: Annotated[
        float,
        typer.Option(metavar="N", help="GPUs of a replica; 0.5 shares one.", min=0, rich_help_panel=_CLUSTER),
    ] = 0.0,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Memory that Ray sets aside for a replica.", rich_help_panel=_CLUSTER
        ),
    ] = None,
    stall: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="How long a replica may give no sign of life before its streams continue elsewhere.",
            min=1,
            rich_help_panel=_CLUSTER,
        ),
    ] = 5.0,
    patience: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="The longest wait for another replica with the same model.",
            min=0,
            rich_help_panel=_CLUSTER,
        ),
    ] = 60.0,
) -> None:
    """Serve a model over HTTP: an OpenAI-compatible API, the API for runs, and the studio."""
    from glassloop.cli.kept import drafter
    from glassloop.engine.memory import parse_bytes
    from glassloop.server.operation.settings import Settings

    load_plugins(plugin)
    remember(adapter or ())
    keys = api_key or [key for key in os.environ.get("GLASSLOOP_API_KEY", "").split(",") if key]
    settings = Settings(
        model,
        host,
        port,
        tuple(keys),
        separate_keys,
        open_to_all,
        keep,
        store,
        parse_bytes(max_body, "max-body"),
        max_prompt,
        timeout=timeout,
        grace=grace,
        log_prompts=log_prompts,
        allow_origins=tuple(allow_origin or ()),
        training=training,
    )
    if store is not None and no_store:
        raise GlassloopError("--store and --no-store are both given; one of them at most is expected")
    note = "runs are kept in memory only"
    if not no_store and keep != 0:  # before the model is loaded, which may take a while
        settings, note = _with_store(settings)
    if upstream is not None:
        own = {"ops": ops, "kv-memory": kv_memory, "draft": draft, "plugin": plugin, "replicas": replicas}
        here: dict[str, object] = {**own, "holes": holes}
        _serve_upstream(upstream, upstream_key_env, settings, note, here)
        return
    if replicas is None:
        given = {"most-replicas": most_replicas, "address": address, "also": also, "memory": memory}
        for name, value in {**given, "threads": threads, "gpus": gpus or None}.items():
            if value is not None:
                raise GlassloopError(f"--{name} is given without --replicas; --replicas N is expected")
    else:
        from glassloop.cluster.options import AppOptions, EngineOptions, threads_of_each

        models = [model, *(also or ())]
        each = EngineOptions(
            model,
            ops,
            kv_memory=kv_memory or (None if address or gpus else _share_of_memory(replicas * len(models))),
            draft=drafter(draft),
            running=running,
            plugins=tuple(str(Path(path).resolve()) for path in plugin or ()),
            holes=None if holes is None else str(Path(holes).resolve()),
            adapters={name: str(Path(path).resolve()) for name, path in take_given().items()},
            replicas=replicas,
            most_replicas=most_replicas,
            queue=queue,
            threads=threads or (None if address else threads_of_each(replicas * len(models))),
            gpus=gpus,
            memory=None if memory is None else parse_bytes(memory, "memory"),
        )
        engines = tuple(replace(each, model=name) for name in models)
        _serve_cluster(
            AppOptions(engines, settings, stall=stall, patience=patience), address, model_defaults, note
        )
        return
    with working(f"Loading {model}"):
        from glassloop.engine.llm import LLM
        from glassloop.server.serve import serve as run

        llm = LLM(
            model, ops, kv_memory=kv_memory, draft=drafter(draft), most_running=running, most_waiting=queue
        )
        load_given(llm)
        if holes is not None:
            llm.load_holes(holes)
    if not model_defaults:
        from glassloop.decode.sampling import Sampling

        llm.default_sampling = Sampling()
    run(llm, settings, note)


def _serve_upstream(
    url: str, key_variable: str, settings: Settings, note: str, here: Mapping[str, object]
) -> None:
    from glassloop.cli.kept import load_upstream
    from glassloop.server.serve import serve as run

    engine = load_upstream(url, settings.model, key_variable, **here)
    run(engine, replace(settings, model=engine.model), note)


def _share_of_memory(replicas: int) -> int:
    """Returns the memory for keys and values of each of several replicas on this machine, which share it."""
    from glassloop.ops.memory import free_host_memory

    return free_host_memory() // 4 // replicas


def _serve_cluster(options: AppOptions, address: str | None, model_defaults: bool, note: str) -> None:
    count = sum(each.replicas for each in options.engines)
    with working(f"Starting {count} replicas"):
        from glassloop.cluster.many_models import ManyModels
        from glassloop.cluster.ray_token import OPEN
        from glassloop.cluster.start import engines
        from glassloop.decode.sampling import Sampling
        from glassloop.server.serve import serve as run

        started = engines(options, address)
        made = started.__enter__()
    try:
        if not model_defaults:
            for engine in made:
                engine.default_sampling = Sampling()
        named = [replace(options.settings, model=each.model) for each in options.engines]
        others = list(zip(made[1:], named[1:], strict=True))
        told = [f"{count} replicas", *([OPEN] if address is None else []), note]
        run(made[0], named[0], "; ".join(told), others=others, join=ManyModels if others else None)
    finally:
        started.__exit__(None, None, None)


def _with_store(settings: Settings) -> tuple[Settings, str]:
    """Returns the settings with a store that can be used, and a note on where runs are kept. Only a store
    that was asked for must be usable."""
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
