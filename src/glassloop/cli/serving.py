"""What `glassloop serve` starts: the server with another engine, with several models, or with replicas; and
where its runs are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from glassloop.cli.terminal import working
from glassloop.errors import GlassloopError, TraceError
from glassloop.util.shown import shown

if TYPE_CHECKING:
    from glassloop.api.llm import LLM
    from glassloop.cluster.options import AppOptions
    from glassloop.server.operation.settings import ServerSettings

_IN_MEMORY = (
    "runs are kept in memory only, until the server ends: others can reach it, and would see the runs in "
    "your own store. To keep them, name a file: --store FILE"
)


def serve_upstream(
    url: str, key_variable: str, settings: ServerSettings, note: str, here: Mapping[str, object]
) -> None:
    from glassloop.cli.kept import load_upstream
    from glassloop.server.serve import serve as run

    engine = load_upstream(url, settings.model, key_variable, **here)
    run(engine, replace(settings, model=engine.model), note)


def share_of_memory(replicas: int) -> int:
    """Returns the memory for keys and values of each of several replicas on this machine, which share it."""
    from glassloop.ops.memory import free_host_memory

    return free_host_memory() // 4 // replicas


def name_models(
    settings: ServerSettings, models: Sequence[str], aliases: Sequence[str]
) -> list[ServerSettings]:
    """Returns the settings of each of several models, with its other names, given as NAME for the first model
    or as NAME=MODEL. Raises if two have the same name."""
    named = [replace(settings, model=model) for model in models]
    for given in aliases:
        alias, _, target = given.partition("=")
        of = [each for each in named if target in ("", each.model, each.served_name)]
        if not of:
            known = ", ".join(each.served_name for each in named)
            problem = f"is {shown(given)}; NAME or NAME=MODEL is expected, where MODEL is one of {known}"
            raise GlassloopError(f"--served-model-name {problem}")
        place = named.index(of[0])
        named[place] = replace(of[0], aliases=(*of[0].aliases, alias))
    for name, count in Counter(name for each in named for name in each.names).items():
        if count > 1:
            raise GlassloopError(f"two models are called {shown(name)}; names that differ are expected")
    return named


def serve_several(
    named: Sequence[ServerSettings],
    load: Callable[[str, int], LLM],
    ops: str | None,
    kv_memory: str | None,
    memory: str | None,
    unload_after: float,
    running: int | None,
    note: str,
) -> None:
    """Serves several models, of which the first is loaded now and each other when a request names it. `load`
    loads one by its name, with so many bytes for keys and values."""
    with working(f"Loading {named[0].model}"):
        from glassloop.engine.memory import cache_share, parse_bytes
        from glassloop.model.loader import ModelFiles
        from glassloop.model.registry import fetch
        from glassloop.ops import choose_ops
        from glassloop.ops.memory import format_bytes
        from glassloop.server.on_demand import Asleep, ModelPlan, OnDemandModels, check_budget
        from glassloop.server.serve import serve as run

        op_set = choose_ops(ops)
        budget = op_set.free_memory().size * 3 // 4 if memory is None else parse_bytes(memory, "memory")
        share = budget // 4 // len(named) if kv_memory is None else parse_bytes(kv_memory)
        plans: dict[str, ModelPlan] = {}
        for each in named:
            files = ModelFiles(fetch(each.model))
            sizes = files.memory(op_set)
            cache = share
            if kv_memory is None:
                cache = cache_share(share, sizes.page, files.config.context, running or op_set.most_running)
            needed = sizes.weights + cache
            plans[each.served_name] = ModelPlan(files.config, needed, partial(load, each.model, cache))
        check_budget(plans, budget)
        first = plans[named[0].served_name].load()
    others = [
        (Asleep.as_engine(each.served_name, plans[each.served_name].config), each) for each in named[1:]
    ]
    told = f"at most {format_bytes(budget)} for all models together"
    run(
        first,
        named[0],
        "; ".join(filter(None, (told, note))),
        others=others,
        join=lambda services: OnDemandModels(services, list(plans.values()), budget, unload_after),
    )


def serve_cluster(
    options: AppOptions, named: Sequence[ServerSettings], address: str | None, model_defaults: bool, note: str
) -> None:
    count = sum(each.replicas for each in options.engines)
    with working(f"Starting {count} replicas"):
        from glassloop.cluster.ray_processes import open_ports, told_ports
        from glassloop.cluster.start import engines
        from glassloop.decode.sampling import Sampling
        from glassloop.server.many_models import ManyModels
        from glassloop.server.serve import serve as run

        started = engines(options, address)
        made = started.__enter__()
    try:
        if not model_defaults:
            for engine in made:
                engine.default_sampling = Sampling()
        others = list(zip(made[1:], named[1:], strict=True))
        ports = [told_ports(open_ports())] if address is None else []
        told = [f"{count} replica{'s' if count > 1 else ''}", *ports, note]
        run(made[0], named[0], "; ".join(told), others=others, join=ManyModels if others else None)
    finally:
        started.__exit__(None, None, None)


def with_store(settings: ServerSettings) -> tuple[ServerSettings, str]:
    """Returns the settings with a store that can be used, and a note on where runs are kept. Only a store
    that was asked for must be usable."""
    from glassloop.record.store.store import Store, default_location

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
