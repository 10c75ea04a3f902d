"""The options of the engine replicas, checked before anything is started."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from glassloop.cluster.fleet import PATIENCE, STALL
from glassloop.cluster.replica import HEARTBEAT
from glassloop.engine.local import check_adapter_name
from glassloop.errors import GlassloopError
from glassloop.model.registry import DEFAULT_MODEL
from glassloop.ops import default_threads
from glassloop.server.operation.settings import ServerSettings, check_fields, public_name
from glassloop.util.shown import shown

MOST_REPLICAS = 100_000


@dataclass(frozen=True)
class EngineOptions:
    """The options of the replicas of one model. `LLM` has the fields that are not described here."""

    model: str
    ops: str | None = None
    weights: str | None = None
    kv_memory: int | str | None = None
    draft: bool | str = True
    running: int | None = None
    plugins: tuple[str, ...] = ()
    adapters: Mapping[str, str] = field(default_factory=dict)  # paths of LoRA adapters, by name
    holes: str | None = None  # the path of an adapter for masked rows
    replicas: int = 1  # with autoscaling, the least
    most_replicas: int | None = None  # autoscaling: between `replicas` and this many
    target_requests: float = 16.0  # autoscaling: open requests of a replica that are aimed at
    upscale_delay: float = 10.0  # autoscaling: seconds of more requests before replicas are added
    downscale_delay: float = 300.0  # autoscaling: seconds of fewer requests before replicas are removed
    queue: int = 256  # requests that may wait in a replica
    threads: int | None = None  # of a replica; None: as many as an engine takes by itself
    gpus: float = 0.0  # of a replica
    memory: int | None = None  # bytes that Ray sets aside for a replica

    def __post_init__(self) -> None:
        _check("replicas", self.replicas, 1, MOST_REPLICAS)
        if self.most_replicas is not None:
            _check("most_replicas", self.most_replicas, self.replicas, MOST_REPLICAS)
        _check("target_requests", self.target_requests, 0.1, 1e6)
        _check("upscale_delay", self.upscale_delay, 0, 86400)
        _check("downscale_delay", self.downscale_delay, 0, 86400)
        _check("queue", self.queue, 1, 1_000_000)
        _check("gpus", self.gpus, 0, 1024)
        check_fields(self, "a list of texts", "plugins")
        check_fields(self, "a text", "ops", "weights", "holes", optional=True)
        check_fields(self, "a whole number from 0 up", "running", "memory", optional=True)
        if not isinstance(self.draft, bool | str):
            raise GlassloopError.about("draft", f"is {shown(self.draft)}; true, false or a name is expected")
        if not isinstance(self.adapters, Mapping):
            raise GlassloopError.about("adapters", "is not an object of names and paths")
        for name in self.adapters:
            check_adapter_name(name)
        if self.threads is not None:
            _check("threads", self.threads, 1, 256)

    @property
    def most_requests(self) -> int:
        """Calls that a replica takes at once: jobs that run or wait, streams of ingresses, questions."""
        return (self.running or 256) + self.queue + 64

    @property
    def resources(self) -> dict[str, Any]:
        """The resources that Ray sets aside for a replica."""
        resources: dict[str, Any] = {"num_cpus": self.threads or 1, "num_gpus": self.gpus}
        if self.memory is not None:
            resources["memory"] = self.memory
        return resources


@dataclass(frozen=True)
class AppOptions:
    """The options of a whole application: the replicas of each model, and the ingresses before them."""

    engines: tuple[EngineOptions, ...]  # of each model; the first one is the default
    settings: ServerSettings  # of the ingresses; its model is the first one
    ingresses: int = 1
    stall: float = STALL  # seconds without a sign of life, after which a replica is given up
    patience: float = PATIENCE  # seconds that a request waits for an equal replica

    def __post_init__(self) -> None:
        _check("ingresses", self.ingresses, 1, MOST_REPLICAS)
        _check("stall", self.stall, 2 * HEARTBEAT, 3600)
        _check("patience", self.patience, 0, 86400)
        if len({deployment_name(each.model) for each in self.engines}) < len(self.engines):
            raise GlassloopError("models has one twice; models with different names are expected")
        if len(self.engines) > 1 and any(each.adapters or each.holes for each in self.engines):
            name = "adapters" if any(each.adapters for each in self.engines) else "holes"
            raise GlassloopError.about(name, "is given with several models; one model is expected")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AppOptions:
        """Returns the options that a config file of Ray Serve gives as `args`. Raises if one is unknown."""
        of_app = {"ingresses", "stall", "patience"}
        of_engines = {each.name for each in fields(EngineOptions)} - {"model"}
        of_server = {"api_keys", "open_to_all", "keep", "store", "most_prompt", "timeout", "log_prompts"}
        of_server |= {"separate_keys"}
        models = values.get("models", values.get("model", DEFAULT_MODEL))
        models = [models] if isinstance(models, str) else models
        if not isinstance(models, list) or not models or not all(isinstance(each, str) for each in models):
            raise GlassloopError.about("models", "is not a list of names; at least one is expected")
        names = of_app | of_engines | of_server | {"model", "models"}
        for name in values:
            if name not in names:
                raise GlassloopError(f"{name} is no option; one of {', '.join(sorted(names))} is expected")

        def of(names: set[str]) -> dict[str, Any]:
            options = {name: each for name, each in values.items() if name in names}
            return {name: tuple(each) if isinstance(each, list) else each for name, each in options.items()}

        engines = tuple(EngineOptions(model, **of(of_engines)) for model in models)
        # Ray Serve's proxy listens, at the address of its own configuration.
        server = of(of_server)
        if isinstance(store := server.get("store"), str) and "://" not in store:
            server["store"] = Path(store)
        settings = ServerSettings(models[0], host="0.0.0.0", port=0, **server)
        return cls(engines, settings, **of(of_app))


def deployment_name(model: str) -> str:
    """Returns the name of the deployment that has the replicas of a model."""
    return "engine-" + re.sub(r"[^A-Za-z0-9]+", "-", public_name(model, Path(model).exists())).strip("-")


def _check(name: str, value: float, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise GlassloopError.about(name, f"is {value!r}; a number from {least:g} to {most:g} is expected")


def threads_of_each(replicas: int) -> int:
    """Returns how many threads each of several replicas on this machine gets: they share its cores."""
    return max(1, default_threads() // replicas)
