"""`glassloop serve`: a model over HTTP, for OpenAI's clients, the studio and other programs."""

from __future__ import annotations

from typing import Annotated

from glassloop.cli.adapters import remember_adapters
from glassloop.cli.flags import Only, takes_flags
from glassloop.cli.options import DEFAULT_MODEL, EngineFlags, Model
from glassloop.cli.serve.flags import (
    AccessFlags,
    ClusterFlags,
    LimitFlags,
    ModelsFlags,
    RecordFlags,
    settings_of,
)
from glassloop.cli.serve.start import ServePlan, name_models, with_store
from glassloop.errors import GlassloopError

_ENGINE = Only(
    *("upstream", "upstream_key_env", "model_defaults", "ops", "kv_memory", "draft"),
    *("plugin", "adapter", "holes"),
)


@takes_flags()
def serve(
    *,
    model: Model = DEFAULT_MODEL,
    engine: Annotated[EngineFlags, _ENGINE],
    access: AccessFlags,
    record: RecordFlags,
    limits: LimitFlags,
    cluster: ClusterFlags,
    models: ModelsFlags,
) -> None:
    """Serve a model over HTTP: an OpenAI-compatible API, the API for runs, and the studio."""
    engine.load_plugins()
    remember_adapters(engine.adapter or ())
    settings = settings_of(model, access, record, limits)
    if record.store is not None and record.no_store:
        raise GlassloopError("--store and --no-store are both given; one of them at most is expected")
    note = "runs are kept in memory only"
    if not record.no_store and record.keep != 0:  # before the model is loaded, which may take a while
        settings, note = with_store(settings)
    if settings.separates_runs:
        note += "; each key sees its own runs only"
    named = name_models(settings, [model, *(models.also or ())], models.served_model_name or ())
    plan = ServePlan(named, engine, limits, cluster, models, note)
    if engine.upstream is not None:
        plan.serve_upstream()
    elif cluster.replicas is not None:
        plan.serve_cluster()
    else:
        cluster.check_unused()
        if models.memory is not None and not models.also:
            raise GlassloopError("--memory is given for one model; --also MODEL or --replicas N is expected")
        plan.serve_here()
