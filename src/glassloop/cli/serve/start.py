"""Starts what `glassloop serve` serves: a model, several models, replicas or another engine; and says where
runs are kept.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from glassloop.cli.adapters import load_adapters, take_adapters
from glassloop.cli.options import EngineFlags
from glassloop.cli.serve.flags import ClusterFlags, LimitFlags, ModelsFlags
from glassloop.cli.terminal import print_notes, working
from glassloop.errors import GlassloopError, TraceError
from glassloop.util.shown import shown

if TYPE_CHECKING:
    from glassloop.api.llm import LLM
    from glassloop.cluster.options import EngineOptions
    from glassloop.server.operation.settings import ServerSettings

_IN_MEMORY = (
    "runs are kept in memory only, until the server ends: others can reach it, and would see the runs in "
    "your own store. To keep them, name a file: --store FILE"
)


@dataclass(frozen=True)
class ServePlan:
    """What is served, and how it is computed."""

    named: Sequence[ServerSettings]  # the settings of each model; the first one is the default
    engine: EngineFlags
    limits: LimitFlags
    cluster: ClusterFlags
    models: ModelsFlags
    note: str  # where runs are kept, for the line that the server prints

    def serve_upstream(self) -> None:
        """Serves another engine."""
        from glassloop.server.serve import serve as run

        settings, models = self.named[0], self.models
        engine = self.engine.connect(
            settings.model,
            replicas=self.cluster.replicas,
            holes=self.engine.holes,
            also=models.also,
            memory=models.memory,
            threads=models.threads,
        )
        run(engine, replace(settings, model=engine.model), self.note)

    def serve_here(self) -> None:
        """Serves models that this process computes."""
        if self.models.threads is not None:
            os.environ["GLASSLOOP_THREADS"] = str(self.models.threads)  # before the library is loaded
        adapters = take_adapters()
        if self.models.also:
            self._serve_several(adapters)
            return
        with working(f"Loading {self.named[0].model}"):
            from glassloop.server.serve import serve as run

            llm = self._load(self.named[0].model, self.engine.kv_memory, adapters)
        run(llm, self.named[0], self.note)

    def _load(self, model: str, kv_memory: int | str | None, adapters: dict[str, str]) -> LLM:
        """Loads one of the models. A draft model, adapters and masked rows are for the first of them."""
        from glassloop.api.llm import LLM
        from glassloop.decode.sampling import Sampling

        engine = self.engine
        is_first = model == self.named[0].model
        llm = LLM(
            model,
            engine.ops,
            kv_memory=kv_memory,
            draft=engine.drafter if is_first or engine.draft == "off" else True,
            most_running=self.limits.running,
            most_waiting=self.limits.queue,
        )
        print_notes(llm.notes)
        if is_first:
            load_adapters(llm, adapters)
            if engine.holes is not None:
                llm.load_holes(engine.holes)
        if not engine.model_defaults:
            llm.default_sampling = Sampling()
        return llm

    def _serve_several(self, adapters: dict[str, str]) -> None:
        """Serves several models: the first is loaded now, each other when a request names it."""
        first_settings, *_ = self.named
        with working(f"Loading {first_settings.model}"):
            from glassloop.engine.kv_memory import cache_share, parse_bytes
            from glassloop.model.loader import ModelFiles
            from glassloop.model.registry import fetch
            from glassloop.ops import choose_ops
            from glassloop.ops.memory import format_bytes
            from glassloop.server.on_demand import Asleep, ModelPlan, OnDemandModels, check_budget
            from glassloop.server.serve import serve as run

            op_set, kv_memory, memory = choose_ops(self.engine.ops), self.engine.kv_memory, self.models.memory
            budget = op_set.free_memory().size * 3 // 4 if memory is None else parse_bytes(memory, "memory")
            share = budget // 4 // len(self.named) if kv_memory is None else parse_bytes(kv_memory)
            running = self.limits.running or op_set.most_running
            plans: dict[str, ModelPlan] = {}
            for each in self.named:
                files = ModelFiles(fetch(each.model))
                sizes = files.memory(op_set)
                cache = share
                if kv_memory is None:
                    cache = cache_share(share, sizes.page, files.config.context, running)
                load = partial(self._load, each.model, cache, adapters)
                plans[each.served_name] = ModelPlan(files.config, sizes.weights + cache, load)
            check_budget(plans, budget)
            first = plans[first_settings.served_name].load()
        others = [
            (Asleep.as_engine(each.served_name, plans[each.served_name].config), each)
            for each in self.named[1:]
        ]
        limit = f"at most {format_bytes(budget)} for all models together"
        unload_after = self.models.unload_after
        run(
            first,
            first_settings,
            "; ".join(filter(None, (limit, self.note))),
            others=others,
            join=lambda services: OnDemandModels(services, list(plans.values()), budget, unload_after),
        )

    def serve_cluster(self) -> None:
        """Serves models that replicas compute."""
        from glassloop.cluster.options import AppOptions

        engine_options = self._replica_options()
        options = AppOptions(
            tuple(replace(engine_options, model=each.model) for each in self.named),
            self.named[0],
            stall=self.cluster.stall,
            patience=self.cluster.patience,
        )
        address = self.cluster.address
        count = sum(each.replicas for each in options.engines)
        with working(f"Starting {count} replicas"):
            from glassloop.cluster.ray_processes import open_ports, told_ports
            from glassloop.cluster.start import engines
            from glassloop.decode.sampling import Sampling
            from glassloop.server.many_models import ManyModels
            from glassloop.server.serve import serve as run

            started = engines(options, address)
            first, *rest = started.__enter__()
        try:
            if not self.engine.model_defaults:
                for engine in (first, *rest):
                    engine.default_sampling = Sampling()
            others = list(zip(rest, self.named[1:], strict=True))
            ports = [told_ports(open_ports())] if address is None else []
            notes = [f"{count} replica{'s' if count > 1 else ''}", *ports, self.note]
            run(first, self.named[0], "; ".join(notes), others=others, join=ManyModels if others else None)
        finally:
            started.__exit__(None, None, None)

    def _replica_options(self) -> EngineOptions:
        """Returns the options of the replicas of the first model. Those on this machine share its memory and
        its cores."""
        from glassloop.cluster.options import EngineOptions, threads_of_each
        from glassloop.engine.kv_memory import parse_bytes
        from glassloop.ops.memory import free_host_memory

        engine, cluster, memory = self.engine, self.cluster, self.models.memory
        assert cluster.replicas is not None
        count = cluster.replicas * len(self.named)
        kv_memory: int | str | None = engine.kv_memory
        if not kv_memory and not (cluster.address or cluster.gpus):
            kv_memory = free_host_memory() // 4 // count
        return EngineOptions(
            self.named[0].model,
            engine.ops,
            kv_memory=kv_memory,
            draft=engine.drafter,
            running=self.limits.running,
            plugins=tuple(str(Path(path).resolve()) for path in engine.plugin or ()),
            holes=None if engine.holes is None else str(Path(engine.holes).resolve()),
            adapters={name: str(Path(path).resolve()) for name, path in take_adapters().items()},
            replicas=cluster.replicas,
            most_replicas=cluster.most_replicas,
            queue=self.limits.queue,
            threads=self.models.threads or (None if cluster.address else threads_of_each(count)),
            gpus=cluster.gpus,
            memory=None if memory is None else parse_bytes(memory, "memory"),
        )


def name_models(
    settings: ServerSettings, models: Sequence[str], aliases: Sequence[str]
) -> list[ServerSettings]:
    """Returns the settings of each of several models, with its other names, given as NAME for the first model
    or as NAME=MODEL. Raises if two have the same name."""
    named = [replace(settings, model=model) for model in models]
    for text in aliases:
        alias, _, target = text.partition("=")
        model = next((each for each in named if target in ("", each.model, each.served_name)), None)
        if model is None:
            names = ", ".join(each.served_name for each in named)
            problem = f"is {shown(text)}; NAME or NAME=MODEL is expected, where MODEL is one of {names}"
            raise GlassloopError(f"--served-model-name {problem}")
        named[named.index(model)] = replace(model, aliases=(*model.aliases, alias))
    for name, count in Counter(name for each in named for name in each.names).items():
        if count > 1:
            raise GlassloopError(f"two models are called {shown(name)}; names that differ are expected")
    return named


def with_store(settings: ServerSettings) -> tuple[ServerSettings, str]:
    """Returns the settings with a store that can be used, and a note on where runs are kept. Only a store
    that was asked for must be usable."""
    from glassloop.record.store.store import Store, default_location

    location = settings.store or default_location()
    if settings.store is None and not settings.is_local:
        return settings, _IN_MEMORY
    store = None
    try:
        store = Store(location)
        store.check()
    except TraceError as error:
        if settings.store is not None:
            raise
        return settings, f"runs are kept in memory only: {error}"
    finally:
        if store is not None:
            with suppress(TraceError):
                store.close()
    return replace(settings, store=location), f"runs are kept in {store.name}"
