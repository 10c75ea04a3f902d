"""Metrics for Prometheus. The engine's counters are read when a client asks for them; times and tokens of a
run are recorded when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from glassloop.engine.language_model import LanguageModel
from glassloop.engine.protocol import Statistics
from glassloop.record.run import Run
from glassloop.server.runs.storage import RunStorage

_FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_Row = tuple[str, str, Callable[[Statistics], float]]  # a metric's name, its help text and its value
_GAUGES: tuple[_Row, ...] = (
    ("requests_waiting", "Requests in the queue", lambda its: its.waiting),
    ("requests_running", "Branches that are computed together now: the batch", lambda its: its.running),
    ("kv_pages", "Pages of keys and values, kept ones included", lambda its: its.pages),
    ("kv_pages_held", "Pages that running requests hold", lambda its: its.pages_held),
    ("kv_pages_capacity", "Pages that there is room for", lambda its: its.pages_capacity),
    ("kv_bytes", "Bytes of keys and values", lambda its: its.kv_bytes),
)
_COUNTERS: tuple[_Row, ...] = (
    ("engine_steps", "Forward passes", lambda its: its.steps),
    ("engine_rows", "Rows of all forward passes; by the steps it is the mean batch", lambda its: its.rows),
    ("engine_forward_seconds", "Seconds in forward passes", lambda its: its.forward_seconds),
    ("engine_step_seconds", "Seconds in steps", lambda its: its.step_seconds),
    ("kv_pages_evicted", "Pages that had to go", lambda its: its.pages_evicted),
)
_EACH = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)


class Metrics:
    def __init__(self, llm: Callable[[], LanguageModel], storage: RunStorage | None = None) -> None:
        """`llm` returns the engine, which may be another one after a while."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry = CollectorRegistry()

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"glassloop_{name}", help, labels, registry=registry)

        def histogram(name: str, help: str, buckets: Iterable[float]) -> Histogram:
            return Histogram(f"glassloop_{name}", help, buckets=tuple(buckets), registry=registry)

        self.requests = counter("http_requests", "HTTP requests", "path", "status")
        self._runs = counter("runs", "Runs that have ended", "finish_reason")
        self._prompt = counter("prompt_tokens", "Tokens of prompts")
        self._cached = counter("cached_prompt_tokens", "Tokens of prompts that were in the cache")
        self._made = counter("generated_tokens", "Tokens that were generated")
        self._proposed = counter("draft_tokens_proposed", "Tokens that a drafter guessed")
        self._accepted = counter("draft_tokens_accepted", "Tokens that a drafter guessed rightly")
        self._preempted = counter("preemptions", "Times that a run had to make room for another")
        self._queue = histogram("queue_seconds", "Until a request's first token was computed", _FIRST)
        self._first = histogram("time_to_first_token_seconds", "Until a run's first token was there", _FIRST)
        self._each = histogram("time_per_token_seconds", "Between two tokens of a run", _EACH)
        ProcessCollector(registry=registry)  # memory, processor time, open files
        registry.register(_Engine(llm))
        if storage is not None:
            registry.register(_Storage(storage))

    def ended(self, run: Run, kept: int) -> None:
        """Records a run that has ended. Its first `kept` tokens are its parent's."""
        self._runs.labels(run.finish_reason or "").inc()
        if run.sample == 0:
            self._prompt.inc(run.usage.prompt_tokens or 0)
            self._cached.inc(run.usage.cached_tokens or 0)
            self._queue.observe(run.timings.queue)
        tokens = run.tokens[kept:]
        self._made.inc(len(tokens))
        self._proposed.inc(run.drafts.proposed)
        self._accepted.inc(run.drafts.accepted)
        self._preempted.inc(run.timings.preempted)
        if tokens:
            self._first.observe(tokens[0].seconds)
        for before, after in pairwise(tokens):
            self._each.observe(after.seconds - before.seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _Engine:
    """The engine's counters, read for each answer."""

    def __init__(self, llm: Callable[[], LanguageModel]) -> None:
        self._llm = llm

    def collect(self) -> Iterable[Any]:
        replicas = self._llm().statistics()
        for kind, rows in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, help, read in rows:
                yield _of_replicas(kind, f"glassloop_{name}", help, read, replicas)


def _of_replicas(
    kind: Any, name: str, help: str, read: Callable[[Statistics], float], replicas: Sequence[Statistics]
) -> Any:
    """Returns a metric with a value for each replica, or one value for the engine in this process."""
    if len(replicas) == 1 and not replicas[0].replica:
        return kind(name, help, read(replicas[0]))
    family = kind(name, help, labels=("replica",))
    for each in replicas:
        family.add_metric((each.replica,), read(each))
    return family


class _Storage:
    """The storage's counters, read for each answer."""

    def __init__(self, storage: RunStorage) -> None:
        self._storage = storage

    def collect(self) -> Iterable[Any]:
        storage = self._storage
        yield from _families(
            CounterMetricFamily,
            ("store_failed_writes", "Runs that could not be written at first", storage.failed_writes),
            ("store_lost_runs", "Runs that were given up", storage.lost_runs),
        )
        unwritten = ("store_unwritten_runs", "Runs to be tried again", storage.unwritten)
        yield from _families(GaugeMetricFamily, unwritten)


def _families(kind: Callable[[str, str, float], Any], *rows: tuple[str, str, float]) -> Iterable[Any]:
    return [kind(f"glassloop_{name}", help, value) for name, help, value in rows]
