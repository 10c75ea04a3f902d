"""The Ray Serve deployments: engine replicas, each with a model, and ingresses, which speak HTTP."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, RequestRouterConfig

from glassloop.cluster.messages import Bulletin, Job, Question, Route
from glassloop.cluster.options import EngineOptions

ENGINE = "engine"  # the name of the deployment


class EngineDeployment:
    """One replica. It loads the model when it is made, so Ray Serve counts it as ready only after that."""

    def __init__(self, options: EngineOptions) -> None:
        # Read when the native library is loaded, which importing the engine does.
        if options.threads is not None:
            os.environ["GLASSLOOP_THREADS"] = str(options.threads)
        import ray

        from glassloop.cluster.replica import Replica
        from glassloop.decode.plugins import load_plugin
        from glassloop.engine.llm import LLM

        for plugin in options.plugins:
            load_plugin(plugin)
        llm = LLM(
            options.model,
            options.ops,
            options.weights,
            kv_memory=options.kv_memory,
            draft=options.draft,
            most_running=options.running,
        )
        name = serve.get_replica_context().replica_id.unique_id
        self._replica = Replica(name, llm, ray.util.get_node_ip_address())

    async def start(self, job: Job) -> None:
        await self._replica.start(job)

    async def cancel(self, route: Route, key: str, session: str) -> None:
        self._replica.cancel(key, session)

    async def open(self, route: Route, session: str) -> AsyncIterator[Bulletin]:
        async for bulletin in self._replica.open(session):
            yield bulletin

    async def ask(self, question: Question) -> Any:
        return await self._replica.ask(question)

    def check_health(self) -> None:
        self._replica.check_health()


def engine_application(options: EngineOptions) -> Application:
    """Returns the engine replicas as an application of their own, without HTTP."""
    scale: dict[str, Any] = {"num_replicas": options.replicas}
    if options.most_replicas is not None:
        scale = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=options.replicas,
                max_replicas=options.most_replicas,
                initial_replicas=options.replicas,
                target_ongoing_requests=options.target_requests,
            )
        }
    deployment = serve.deployment(EngineDeployment).options(
        name=ENGINE,
        max_ongoing_requests=options.most_requests,
        graceful_shutdown_timeout_s=20,
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=2,
        health_check_timeout_s=30,
        ray_actor_options=options.resources,
        request_router_config=RequestRouterConfig(
            request_router_class="glassloop.cluster.router.PrefixRouter"
        ),
        **scale,
    )
    return deployment.bind(options)
