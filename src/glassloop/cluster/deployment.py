"""The Ray Serve deployments: engine replicas, each with a model, and ingresses, which speak HTTP."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from starlette.types import ASGIApp

from glassloop.cluster.messages import Job, Question, Reply, Route
from glassloop.cluster.options import AppOptions, EngineOptions, deployment_name
from glassloop.cluster.pickling import PickledPart, in_parts
from glassloop.server.operation.settings import public_name

_LOOK_BACK = 15.0  # seconds over which Ray Serve averages the number of open requests; it measures every 10
_ROUTER = "glassloop.cluster.router.PrefixRouter"
# Requests with the same header `x-session-id` go to the same ingress, the others to any.
_INGRESS_ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"


class EngineDeployment:
    """One replica. It loads the model when it is made, so Ray Serve counts it as ready only after that."""

    def __init__(self, options: EngineOptions) -> None:
        # Read when the native library is loaded, which importing the engine does.
        if options.threads is not None:
            os.environ["GLASSLOOP_THREADS"] = str(options.threads)
        import ray

        from glassloop.api.llm import LLM
        from glassloop.cluster.ray_processes import keep_local
        from glassloop.cluster.replica import Replica
        from glassloop.decode.plugins import load_plugin

        keep_local(ray.util.get_node_ip_address())
        for plugin in options.plugins:
            load_plugin(plugin)
        llm = LLM(
            options.model,
            options.ops,
            options.weights,
            kv_memory=options.kv_memory,
            draft=options.draft,
            most_running=options.running,
            adapters=dict(options.adapters),
        )
        if options.holes is not None:
            llm.load_holes(options.holes)
        llm.name = public_name(options.model, Path(options.model).exists())  # clients must not see a path
        name = serve.get_replica_context().replica_id.unique_id
        self._replica = Replica(name, llm, ray.util.get_node_ip_address())

    async def start(self, job: Job) -> None:
        await self._replica.start(job)

    async def cancel(self, route: Route, key: str, session: str, run: int | None = None) -> None:
        self._replica.cancel(key, session, run)

    async def open(self, route: Route, session: str) -> AsyncIterator[PickledPart]:
        async for bulletin in self._replica.open(session):
            for part in in_parts(bulletin):
                yield part

    async def ask(self, question: Question) -> AsyncIterator[Reply]:
        async for reply in self._replica.ask(question):
            yield reply

    def check_health(self) -> None:
        self._replica.check_health()


def engine_application(options: EngineOptions) -> Application:
    """Returns the engine replicas of one model as an application of their own, without HTTP."""
    return _engines(options)


def whole_application(options: AppOptions) -> Application:
    """Returns ingresses that speak HTTP, with the engine replicas of each model behind them."""

    def build() -> ASGIApp:
        from glassloop.cluster.ingress import make_ingress

        return make_ingress(options)

    ingress = serve.deployment(serve.ingress(build)()).options(
        name="ingress",
        num_replicas=options.ingresses,
        max_ongoing_requests=4096,
        graceful_shutdown_timeout_s=options.settings.grace,
        ray_actor_options={"num_cpus": 1},
        request_router_config=RequestRouterConfig(request_router_class=_INGRESS_ROUTER),
    )
    return ingress.bind(*(_engines(each, options.ingresses) for each in options.engines))


def _engines(options: EngineOptions, ingresses: int = 1) -> Any:
    scale: dict[str, Any] = {"num_replicas": options.replicas}
    if options.most_replicas is not None:
        scale = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=options.replicas,
                max_replicas=options.most_replicas,
                initial_replicas=options.replicas,
                # Ray Serve counts the stream to each ingress as a request too.
                target_ongoing_requests=options.target_requests + ingresses,
                upscale_delay_s=options.upscale_delay,
                downscale_delay_s=options.downscale_delay,
                look_back_period_s=_LOOK_BACK,
            )
        }
    deployment = serve.deployment(EngineDeployment).options(
        name=deployment_name(options.model),
        max_ongoing_requests=options.most_requests,
        graceful_shutdown_timeout_s=20,
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=2,
        health_check_timeout_s=30,
        ray_actor_options=options.resources,
        logging_config={"enable_access_log": False},
        request_router_config=RequestRouterConfig(request_router_class=_ROUTER),
        **scale,
    )
    return deployment.bind(options)
