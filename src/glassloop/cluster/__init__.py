"""Many machines: engine replicas behind one address, on Ray Serve. `app` is the application of a config file:
`import_path: glassloop.cluster:app`, with the fields of `AppOptions` and `EngineOptions` as `args`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application


def app(args: dict[str, Any]) -> Application:
    """Returns the application: ingresses that speak HTTP, and engine replicas that hold the models."""
    from glassloop.cluster.start import need_ray

    need_ray()
    from glassloop.cluster.deployment import whole_application
    from glassloop.cluster.options import AppOptions

    return whole_application(AppOptions.from_dict(args))
