"""Starts replicas for the command line: on a Ray of their own on this machine, or on a cluster that runs."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from typing import Any

from glassloop.cluster import ray_processes
from glassloop.cluster.options import AppOptions, EngineOptions, deployment_name
from glassloop.cluster.ray_token import private_token
from glassloop.errors import GlassloopError
from glassloop.model.registry import fetch

_STORE = 128 << 20  # bytes of Ray's object store: messages are small, and weights do not pass through it
_STARTS = 3  # attempts to start Ray
_CONNECT_SECONDS = 10.0
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_SERVE_LOG_TO_STDERR": "0", "GRPC_VERBOSITY": "ERROR"}
# For a Ray on this machine alone: it shares the cores with the replicas, and nobody reads what it measures.
_LOCAL = {
    # Ray listens on 127.0.0.1 alone, as on the systems that this is named after, instead of on all addresses.
    # It reads this when it is imported.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_worker_niceness": "0",  # by default Ray gives its processes a low priority
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "10000",  # instead of 100
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",  # instead of 0.1
}


def need_ray() -> None:
    """Raises if Ray is not installed."""
    spec = find_spec("ray")
    if spec is None or spec.origin is None:  # or a folder of this name
        raise GlassloopError("replicas need Ray, which is not installed; run: pip install 'glassloop[ray]'")


@contextmanager
def engines(options: AppOptions, address: str | None = None) -> Iterator[list[Any]]:
    """Gives each model, whose replicas run until the block is left. Replicas of the same model
    that a cluster has already are used, and stay. A Ray of their own needs a token that only we have."""
    need_ray()
    token = private_token() if address is None else nullcontext()
    with token, _engines(options, address) as models:
        yield models


@contextmanager
def _engines(options: AppOptions, address: str | None) -> Iterator[list[Any]]:
    for each in options.engines:  # a model that is unknown is an error at once; replicas download none
        fetch(each.model)
    for name, value in (_QUIET if address is not None else {**_QUIET, **_LOCAL}).items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray").setLevel(logging.ERROR)
    import ray

    _connect(address, options)
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    deployed: list[str] = []
    models: list[Any] = []
    try:
        serve.start(proxy_location="Disabled")
        for each in options.engines:
            name = f"glassloop-{deployment_name(each.model).removeprefix('engine-')}"
            if name not in serve.status().applications:
                deployed.append(name)
                _deploy(name, each)
            models.append(_model(name, each, options))
        yield models
    finally:
        _silence_ray()
        for model in models:
            model.close()
        started = ray_processes.children_of_ray() if address is None else []
        if address is None:
            serve.shutdown()
        else:
            for name in deployed:
                serve.delete(name)
        ray.shutdown()
        ray_processes.end(started)


def _silence_ray() -> None:
    """Keeps Ray from printing, while it is shut down, that calls to processes which end have failed."""
    import ray

    ray._private.worker.print_to_stdstream = lambda *args, **options: None


def _connect(address: str | None, options: AppOptions) -> None:
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "namespace": "glassloop"}
    if address is not None:
        _check_reachable(address)
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise GlassloopError(f"there is no Ray cluster at {address}: {error}") from None
        return
    cpus = sum((each.most_replicas or each.replicas) * (each.threads or 1) for each in options.engines)
    for attempt in range(_STARTS):
        try:
            # The number of CPUs is what replicas ask for: their threads share the cores that there are.
            ray.init(
                "local",  # and not one that runs on this machine already
                num_cpus=cpus + 1,
                object_store_memory=_STORE,
                include_dashboard=False,
                **quiet,
            )
            return
        except Exception as error:  # Ray gives its processes 30 s, which a busy machine may not keep
            ray.shutdown()
            if attempt + 1 == _STARTS:
                raise GlassloopError(f"Ray could not be started on this machine: {error}") from None


def _check_reachable(address: str) -> None:
    """Raises if nothing listens at an address `HOST:PORT`: Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return  # such as auto
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError, ValueError) as error:
        raise GlassloopError(f"there is no Ray cluster at {address}: {error}") from None


def _deploy(name: str, options: EngineOptions) -> None:
    from ray import serve

    from glassloop.cluster.deployment import engine_application

    try:
        serve.run(engine_application(options), name=name, route_prefix=None)
    except RuntimeError:
        message = serve.status().applications[name].message if name in serve.status().applications else ""
        raise GlassloopError(f"the replicas of {options.model} could not be started: {message}") from None


def _model(name: str, options: EngineOptions, app: AppOptions) -> Any:
    """Returns a model whose replicas are deployed."""
    from ray import serve

    from glassloop.cluster.ingress import model_of

    handle = serve.get_deployment_handle(deployment_name(options.model), app_name=name)
    return model_of(handle, name, options, app)
