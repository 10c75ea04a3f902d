"""Several models in one process, loaded when a request names them, within a budget of memory. The one that
was not used for longest makes room for another, but never while it computes, and one that nobody has asked
for a while is unloaded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast

from starlette.types import Receive, Scope, Send

from glassloop.engine.language_model import LanguageModel
from glassloop.engine.protocol import Statistics, Unavailable
from glassloop.errors import GlassloopError
from glassloop.model.config import ModelConfig
from glassloop.ops.memory import format_bytes
from glassloop.record.run import Run
from glassloop.server.http.access import PROBES, path_needs_key
from glassloop.server.http.errors import APIError, as_api_error, shutting_down
from glassloop.server.many_models import ManyModels
from glassloop.server.service import Service

_MOST_WAITING = 256  # requests that wait for a model to be loaded
_PATIENCE = 30.0  # seconds to wait for a model that is busy and has to make room
_LOOK = 0.05  # seconds between two looks whether it still is
_RETRY_AFTER = {"Retry-After": "5"}
# Answered without the model.
_LIGHT = (*PROBES, "/docs", "/openapi.json", "/v1/models", "/api/tags", "/api/ps", "/api/version")


class ModelPlan(NamedTuple):
    """A model that can be loaded."""

    config: ModelConfig
    needed: int  # bytes: its weights, and its keys and values
    load: Callable[[], LanguageModel]


class Asleep:
    """Stands for the engine of a model that is not loaded. Requests wait until it is, so all that is read of
    it is for lists, probes and metrics."""

    upstream, problem, drafter, ready = None, None, None, True
    can_diffuse = False
    kv_memory = 0

    def __init__(self, name: str, config: ModelConfig) -> None:
        self.name = name
        self.config = config
        self.adapters: dict[str, Any] = {}

    @classmethod
    def as_engine(cls, name: str, config: ModelConfig) -> LanguageModel:
        return cast(LanguageModel, cls(name, config))

    def statistics(self) -> list[Statistics]:
        return []

    def handovers(self) -> list[Any]:
        return []

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise Unavailable(f"the model {self.name} is not loaded")


class _Model:
    """The state of one of the models."""

    def __init__(self, service: Service, plan: ModelPlan) -> None:
        self.service = service
        self.plan = plan
        self.requests = 0  # that are answered now, or wait for it
        self.used = time.monotonic()
        self.loading: asyncio.Task[None] | None = None
        self.unloading: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None  # of the next look whether it is still used

    @property
    def is_loaded(self) -> bool:
        return not isinstance(self.service.llm, Asleep)

    @property
    def is_idle(self) -> bool:
        return not (self.requests or self.service.runs.running() or self.service.control.searches)


class OnDemandModels(ManyModels):
    """An ASGI application that passes each request to the application of one model, which it loads before if
    need be. All models that are loaded together take at most `memory` bytes, and one that had no request for
    `unload_after` seconds is unloaded (0: never)."""

    def __init__(
        self,
        services: Sequence[Service],
        plans: Sequence[ModelPlan],
        memory: int,
        unload_after: float = 0.0,
    ) -> None:
        super().__init__(services)
        self._unload_after = unload_after
        pairs = zip(services, plans, strict=True)
        self._models = {service.name: _Model(service, plan) for service, plan in pairs}
        self._memory = memory
        for model in self._models.values():
            model.service.state = "loaded" if model.is_loaded else "unloaded"
        self._one_load = asyncio.Lock()

    async def _pass(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        model = self._models[name]
        # A model is not loaded for someone who may not use it, nor for what can be said without it.
        path = scope["path"]
        is_light = path in _LIGHT or path.startswith("/v1/models")
        if path_needs_key(path) and not is_light and self._access.admits(scope):
            try:
                await self._hold(model)
            except Exception as error:
                await self._refuse(as_api_error(error), scope, receive, send)
                return
            try:
                await super()._pass(name, scope, receive, send)
            finally:
                model.requests -= 1
                model.used = time.monotonic()
                if model.timer is None and self._unload_after:
                    self._look_in(model, self._unload_after)
        else:
            await super()._pass(name, scope, receive, send)

    # ── loading ────────────────────────────────────────────────────────────────────────────────────────────

    async def _hold(self, model: _Model) -> None:
        """Counts a request of a model, which is loaded when this returns and stays so until it is counted
        off."""
        model.requests += 1
        try:
            while not model.is_loaded:
                if model.requests > _MOST_WAITING:
                    message = f"{_MOST_WAITING} requests wait for the model {model.service.name} already"
                    raise APIError(503, message, code="model_loading", headers=_RETRY_AFTER)
                if model.loading is None:
                    model.loading = asyncio.create_task(self._load(model))
                await asyncio.shield(model.loading)
        except BaseException:
            model.requests -= 1
            raise

    async def _load(self, model: _Model) -> None:
        name, service = model.service.name, model.service
        service.state = "loading"
        try:
            async with self._one_load:
                await self._make_room(model)
                if service.draining:
                    raise shutting_down()
                began = time.monotonic()
                try:
                    engine = await asyncio.to_thread(model.plan.load)
                except (GlassloopError, OSError, MemoryError) as error:
                    service.log("error", model=name, error=f"cannot be loaded: {error}")
                    message = f"the model {name} cannot be loaded now"
                    raise APIError(503, message, code="model_not_loaded", headers=_RETRY_AFTER) from error
                engine.name = name
                service.llm = engine
                if engine.tokenizer.chat_template is not None:
                    engine.tokenizer.chat_template.warm()
                service.log("model", model=name, state="loaded", seconds=round(time.monotonic() - began, 3))
        finally:
            model.loading = None
            service.state = "loaded" if model.is_loaded else "unloaded"

    async def _make_room(self, model: _Model) -> None:
        """Unloads models until this one fits. Waits for those that compute; raises if that takes too long."""
        until = time.monotonic() + _PATIENCE
        while True:
            loaded = [each for each in self._models.values() if each.is_loaded]
            if sum(each.plan.needed for each in loaded) + model.plan.needed <= self._memory:
                return
            idle = [each for each in loaded if each.is_idle]
            if idle:
                await self._unload(min(idle, key=lambda each: each.used))
            elif time.monotonic() < until and not model.service.draining:
                await asyncio.sleep(_LOOK)
            else:
                names = " and ".join(each.service.name for each in loaded)
                message = f"there is no memory for the model {model.service.name} now: {names} must end first"
                raise APIError(503, message, code="model_not_loaded", headers=_RETRY_AFTER)

    def _look_in(self, model: _Model, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        model.timer = loop.call_later(seconds, self._unload_if_unused, model)

    def _unload_if_unused(self, model: _Model) -> None:
        model.timer = None
        left = self._unload_after - (time.monotonic() - model.used)
        if model.is_loaded and model.is_idle and left <= 0:
            model.unloading = asyncio.create_task(self._unload(model))
        elif model.is_loaded:
            self._look_in(model, max(left, _LOOK))

    async def _unload(self, model: _Model) -> None:
        service = model.service
        engine, service.llm = service.llm, Asleep.as_engine(service.name, model.plan.config)
        service.state = "unloaded"
        runs = [state.run for state in service.runs.states]
        await asyncio.to_thread(_part, engine, runs)
        service.log("model", model=service.name, state="unloaded")


def _part(engine: LanguageModel, runs: Sequence[Run]) -> None:
    """Ends an engine, and makes runs forget it: a run that is kept must not keep the model. It knows by the
    hash of its files which one it was."""
    with suppress(GlassloopError):  # the files are gone
        for run in runs:
            run.model_hash = run.identity
    for run in runs:
        run.llm = None
    engine.close()


def check_budget(plans: dict[str, ModelPlan], memory: int) -> None:
    """Raises if one of the models would not fit, even alone."""
    for name, plan in plans.items():
        if plan.needed > memory:
            raise GlassloopError(
                f"{name} needs {format_bytes(plan.needed)} for weights, keys and values; all models together"
                f" may take {format_bytes(memory)} (--memory, --kv-memory)"
            )
