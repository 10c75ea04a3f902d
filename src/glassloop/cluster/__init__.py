"""Many machines: engine replicas behind one address, on Ray Serve. `app` is the application of a config file:
`import_path: glassloop.cluster:app`, with the fields of `AppOptions` and `EngineOptions` as `args`.

    an ingress: a server, with a model that has no weights          a replica: an engine with the weights

    ClusterModel (cluster_model.py)
      prepares requests; explain, lens, embed are questions
        │ submit, cancel, ask
    Fleet (fleet.py), the engine: one thread
        ├─ a request:   Stream, ReplicaStreams ──── Job ───────▶ Replica (replica.py) ──▶ LLM
        │               (run_stream.py, streams.py)                  │ tokens
        │                      ▲                             Session (session.py): what an ingress
        │                      │ News                        has still to be told
        │               Channels (channels.py) ◀─── Bulletin ────────┘
        │                one stream from each replica: news, its report, and that it is alive
        │
        └─ a question:  Calls (calls.py) ────────── Question ──▶ Replica.ask ──▶ a function with the LLM
                               ▲──────────────────── Reply ──────────┘ events, then the answer

    which replica:  PrefixRouter (router.py) asks the Board (board.py), which has the reports of all replicas,
                    for the one with the longest cached prefix (prefixes.py) and the least load
    how:            messages.py has what is sent and `Transport`; serve_transport.py carries it with Ray Serve
    a replica dies: a Stream goes on elsewhere from the tokens that were delivered (beams and masks begin
                    anew, and what was delivered is left out); a question is asked again
    from outside:   start.py starts Ray for the command line, deployment.py has the deployments of Ray Serve,
                    ingress.py the server of one ingress
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
