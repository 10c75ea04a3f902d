"""An ingress: a model that it reaches by a handle of Ray Serve, and the HTTP server around its models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from glassloop.cluster.board import board_of
from glassloop.cluster.cluster_model import ClusterModel
from glassloop.cluster.options import AppOptions, EngineOptions, deployment_name
from glassloop.cluster.serve_transport import ServeTransport
from glassloop.server.app import make_app
from glassloop.server.many_models import ManyModels
from glassloop.server.operation.logs import Log
from glassloop.server.operation.watchdog import Watched
from glassloop.server.runs.storage import RunStorage
from glassloop.server.service import Service

_DEPLOY_SECONDS = 900.0  # for the first replicas to load their model


def make_ingress(options: AppOptions) -> ASGIApp:
    """Returns the ASGI application of one ingress replica."""
    application = serve.get_replica_context().app_name
    settings = options.settings
    log = Log(settings.log_prompts, level=settings.log_level, access=settings.access_log)
    for warning in settings.warnings:
        log("warning", message=warning)
    storage = None
    if settings.store is not None and settings.in_memory:
        storage = RunStorage(settings.store, settings.address, settings.keep, log)
    services = []
    for each in options.engines:
        for plugin in each.plugins:
            from glassloop.decode.plugins import load_plugin

            load_plugin(plugin)
        handle = serve.get_deployment_handle(deployment_name(each.model), app_name=application)
        llm = model_of(handle, application, each, options)
        services.append(Service(llm, replace(settings, model=each.model), log, storage))
    return Watched(ManyModels(services) if len(services) > 1 else make_app(services[0]), log.held_up)


def model_of(
    handle: DeploymentHandle[Any], application: str, options: EngineOptions, app: AppOptions
) -> ClusterModel:
    """Returns the model whose replicas a handle of Ray Serve reaches, once one of them has reported."""
    if not handle.is_initialized:
        handle._init()  # makes the router, without which no replica is known
    llm = ClusterModel(
        ServeTransport(handle),
        board_of(application, deployment_name(options.model)),
        options.model,
        draft=options.draft is not False,
        most_waiting=options.queue,
        stall=app.stall,
        patience=app.patience,
    )
    llm.wait(1, _DEPLOY_SECONDS)
    return llm
