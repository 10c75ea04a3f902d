"""The options of the engine replicas, checked before anything is started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glassloop.errors import GlassloopError

MOST_REPLICAS = 100_000


@dataclass(frozen=True)
class EngineOptions:
    """What every replica of one model is made of. `LLM` has the fields that are not described here."""

    model: str
    ops: str | None = None
    weights: str | None = None
    kv_memory: int | str | None = None
    draft: bool | str = True
    running: int | None = None
    plugins: tuple[str, ...] = ()
    replicas: int = 1  # with autoscaling, the least
    most_replicas: int | None = None  # autoscaling: between `replicas` and this many
    target_requests: float = 16.0  # autoscaling: open requests of a replica that are aimed at
    queue: int = 256  # requests that may wait in a replica
    threads: int | None = None  # of a replica; None: as many as an engine takes by itself
    gpus: float = 0.0  # of a replica
    memory: int | None = None  # bytes that Ray sets aside for a replica

    def __post_init__(self) -> None:
        _check("replicas", self.replicas, 1, MOST_REPLICAS)
        if self.most_replicas is not None:
            _check("most_replicas", self.most_replicas, self.replicas, MOST_REPLICAS)
        _check("target_requests", self.target_requests, 0.1, 1e6)
        _check("queue", self.queue, 1, 1_000_000)
        _check("gpus", self.gpus, 0, 1024)
        if self.threads is not None:
            _check("threads", self.threads, 1, 256)

    @property
    def most_requests(self) -> int:
        """Calls that a replica takes at once: jobs that run or wait, streams of ingresses, questions."""
        return (self.running or 256) + self.queue + 64

    @property
    def resources(self) -> dict[str, Any]:
        """What Ray sets aside for a replica."""
        own: dict[str, Any] = {"num_cpus": self.threads or 1, "num_gpus": self.gpus}
        if self.memory is not None:
            own["memory"] = self.memory
        return own


def _check(name: str, value: float, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise GlassloopError.about(name, f"is {value!r}; a number from {least:g} to {most:g} is expected")


def threads_of_each(replicas: int) -> int:
    """Returns how many threads each of several replicas on this machine gets: they share its cores."""
    from glassloop.ops.native.library import wanted_threads

    return max(1, wanted_threads() // replicas)
