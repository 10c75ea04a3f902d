"""`Engine`: what computes requests. `EngineThread` does so in this process, `Fleet` has replicas do it, and
`UpstreamStreams` another server. Every language model has one: see `engine/language_model.py`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from glassloop.engine.request import Request
from glassloop.errors import GlassloopError
from glassloop.record.run import Run

# What makes drafts: the lookup alone; beside it a drafter that was trained for the model; or a smaller model.
DrafterKind = Literal["lookup", "drafter", "model"]

UNKNOWN_CONTEXT = 1 << 30  # tokens of the context of a model elsewhere, where they are not known


class Unavailable(GlassloopError):
    """No replica can compute this now. Nothing is wrong with the request."""


@dataclass(frozen=True)
class Statistics:
    """The state of one engine: its load, its KV cache, and totals since its start (0: not known)."""

    replica: str  # its name; empty for the engine in this process
    pid: int
    node: str  # the machine
    model: str
    waiting: int  # requests in the queue
    running: int  # branches that are computed together: the batch
    kv_memory: int = 0  # bytes that keys and values may take
    kv_bytes: int = 0  # bytes that they take now
    page_bytes: int = 0
    pages: int = 0  # in the KV tree, kept ones included
    pages_held: int = 0  # by running requests
    pages_capacity: int = 0
    pages_evicted: int = 0
    cached_tokens: int = 0  # tokens that the pages have room for
    steps: int = 0
    rows: int = 0
    finished: int = 0  # requests
    forward_seconds: float = 0.0
    step_seconds: float = 0.0
    prompt_tokens: int = 0  # of finished requests
    prompt_tokens_cached: int = 0  # of these: they were in the KV tree

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Handover:
    """A request that was continued on another replica, from the tokens that it had."""

    time: float  # seconds since 1970
    run: str  # the id of the run, of several samples the first that had not ended
    tokens: int  # that its runs had
    source: str  # the replica that computed it
    target: str  # the replica that continued it
    reason: str  # died, stalled or drained
    seconds: float  # without a replica
    owner: str = ""  # the client whose request it is; told to nobody

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "owner"}


class Engine(Protocol):
    """Computes requests. Everything may be called from any thread."""

    @property
    def most_running(self) -> int:
        """The number of branches or requests that are computed together at most."""

    def submit(self, request: Request, may_refuse: bool = True) -> None:
        """Queues a request; its listener is told of the tokens. If `may_refuse`, raises `Busy` where too many
        wait already."""

    def cancel(self, request: Request, wait: bool = False, run: Run | None = None) -> None:
        """Ends a request soon, as cancelled, with the tokens that it has, or with `run` this run of it alone;
        the runs of a beam search end together. With `wait`, returns when it has given back what it held."""

    def check_may_wait(self) -> None:
        """Raises on the engine's own thread, on which listeners are called: a call that waits for the engine
        would wait for ever."""

    def statistics(self, model: str) -> list[Statistics]:
        """Returns the state of the engine, or one entry for each replica, under this name of the model. It
        must be quick."""

    def close(self) -> None:
        """Ends what runs, as cancelled, and frees what the engine holds."""
