"""`glassloop serve`: a model over HTTP, for OpenAI's clients, the studio and other programs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glassloop.cli.adapters import Adapters, remember, take_given
from glassloop.cli.diffusion import Holes
from glassloop.cli.help import MODEL, OUTPUT
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
from glassloop.cli.serve_config import read_keys, take_config
from glassloop.cli.serving import (
    name_models,
    serve_cluster,
    serve_several,
    serve_upstream,
    share_of_memory,
    with_store,
)
from glassloop.cli.terminal import print_notes, working
from glassloop.errors import GlassloopError

if TYPE_CHECKING:
    from glassloop.api.llm import LLM

_ACCESS, _LIMITS, _CLUSTER = "Address and access", "Limits", "Replicas"


def serve(
    model: Model = DEFAULT_MODEL,
    upstream: Upstream = None,
    upstream_key_env: UpstreamKey = UPSTREAM_KEY,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A TOML file with options, by their names: port = 8000. Those of the command line go before,"
            " and so do variables such as GLASSLOOP_SERVE_PORT.",
            callback=take_config,
            is_eager=True,
            show_default=False,
            rich_help_panel=_ACCESS,
        ),
    ] = None,
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
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Require one of the keys in this file, one a line. Only its owner may read it (chmod 600).",
            show_default=False,
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    separate_keys: Annotated[
        bool | None,
        typer.Option(
            "--separate-keys/--shared-cache",
            help="Whether each key has runs and cached prompts of its own, or all keys share them; by default"
            " of its own, if there are several.",
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
    log_level: Annotated[
        str,
        typer.Option(
            metavar="LEVEL",
            help="What to log: debug (probes of /health, /ready and /metrics too), info, warning or error.",
            rich_help_panel=OUTPUT,
        ),
    ] = "info",
    access_log: Annotated[
        bool,
        typer.Option(
            "--access-log/--no-access-log", help="Whether to log each request.", rich_help_panel=OUTPUT
        ),
    ] = True,
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
            help="Serve this model too, by its name; may be repeated. It is loaded when a request names it,"
            " or has replicas of its own.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Another name by which clients may ask for the model, or NAME=MODEL for one of --also; may"
            " be repeated.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Threads that compute, of each replica if there are several. Default: the cores of this"
            " machine, shared by the replicas.",
            min=1,
            max=256,
            rich_help_panel=MODEL,
        ),
    ] = None,
    gpus: Annotated[
        float,
        typer.Option(metavar="N", help="GPUs of a replica; 0.5 shares one.", min=0, rich_help_panel=_CLUSTER),
    ] = 0.0,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="The most memory that all models together take (--also); the one that was not used for"
            " longest makes room. With --replicas: what Ray sets aside for each.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    unload_after: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="How long one of several models (--also) stays loaded without a request; 0: until another"
            " needs its memory.",
            min=0,
            rich_help_panel=MODEL,
        ),
    ] = 900,
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
    from glassloop.server.operation.settings import ServerSettings

    load_plugins(plugin)
    remember(adapter or ())
    keys = api_key or [key for key in os.environ.get("GLASSLOOP_API_KEY", "").split(",") if key]
    if api_key_file is not None:
        keys = [*keys, *read_keys(api_key_file)]
    settings = ServerSettings(
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
        log_level=log_level,
        access_log=access_log,
        allow_origins=tuple(allow_origin or ()),
        training=training,
    )
    if store is not None and no_store:
        raise GlassloopError("--store and --no-store are both given; one of them at most is expected")
    note = "runs are kept in memory only"
    if not no_store and keep != 0:  # before the model is loaded, which may take a while
        settings, note = with_store(settings)
    if settings.separates_runs:
        note += "; each key sees its own runs only"
    named = name_models(settings, [model, *(also or ())], served_model_name or ())
    if upstream is not None:
        own = {"ops": ops, "kv-memory": kv_memory, "draft": draft, "plugin": plugin, "replicas": replicas}
        here: dict[str, object] = {**own, "holes": holes, "also": also, "memory": memory, "threads": threads}
        serve_upstream(upstream, upstream_key_env, named[0], note, here)
        return
    if replicas is None:
        given = {"most-replicas": most_replicas, "address": address, "gpus": gpus or None}
        for name, value in given.items():
            if value is not None:
                raise GlassloopError(f"--{name} is given without --replicas; --replicas N is expected")
        if memory is not None and not also:
            raise GlassloopError("--memory is given for one model; --also MODEL or --replicas N is expected")
    else:
        from glassloop.cluster.options import AppOptions, EngineOptions, threads_of_each

        models = [each.model for each in named]
        each = EngineOptions(
            model,
            ops,
            kv_memory=kv_memory or (None if address or gpus else share_of_memory(replicas * len(models))),
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
        serve_cluster(
            AppOptions(engines, settings, stall=stall, patience=patience),
            named,
            address,
            model_defaults,
            note,
        )
        return
    if threads is not None:
        os.environ["GLASSLOOP_THREADS"] = str(threads)  # before the library is loaded
    adapters = take_given()

    def load(name: str, cache: int | str | None = kv_memory) -> LLM:
        """Loads one of the models. Drafts, adapters and masked rows that are given are for the first."""
        from glassloop.api.llm import LLM

        is_first = name == model
        asked = draft if is_first or draft == "off" else None
        llm = LLM(name, ops, kv_memory=cache, draft=drafter(asked), most_running=running, most_waiting=queue)
        print_notes(llm.notes)
        if is_first:
            for adapter_name, path in adapters.items():
                llm.load_adapter(adapter_name, path)
            if holes is not None:
                llm.load_holes(holes)
        if not model_defaults:
            from glassloop.decode.sampling import Sampling

            llm.default_sampling = Sampling()
        return llm

    if also:
        serve_several(named, load, ops, kv_memory, memory, unload_after, running, note)
        return
    with working(f"Loading {model}"):
        from glassloop.server.serve import serve as run

        llm = load(model)
    run(llm, named[0], note)
