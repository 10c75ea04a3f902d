"""The ingress in a deployment of Ray Serve: the server of one machine, with the replicas as its engine."""

from __future__ import annotations

from dataclasses import replace

from ray import serve
from starlette.types import ASGIApp

from glassloop.cluster.options import AppOptions, deployment_name
from glassloop.cluster.start import engine_of
from glassloop.server.app import make_app
from glassloop.server.many_models import ManyModels
from glassloop.server.operation.logs import Log
from glassloop.server.operation.watchdog import Watched
from glassloop.server.runs.storage import RunStorage
from glassloop.server.service import Service


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
        engine = engine_of(handle, application, each, options)
        services.append(Service(engine, replace(settings, model=each.model), log, storage))
    return Watched(ManyModels(services) if len(services) > 1 else make_app(services[0]), log.held_up)
