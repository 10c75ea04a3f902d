"""A request: what a caller asked for, the listener to tell, and the runs that come of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from glassloop.decode.compiled import Compiled
from glassloop.decode.sampling import Sampling
from glassloop.decode.stage import OwnTime
from glassloop.decode.stop import Ending, Pause
from glassloop.engine.owner import current_owner, current_realm
from glassloop.engine.tasks.task import Counters
from glassloop.errors import GlassloopError, contained, described
from glassloop.ops.batch import PAGE
from glassloop.record.run import Run, text_held_back
from glassloop.record.token import TakenBack, Token

_LOG = logging.getLogger(__name__)

# Told of each token of each run as it is chosen, and with None that the run has ended. Called by the engine:
# it must be quick, and must not raise.
Listener = Callable[[Run, Token | None], None]


def ignore(run: Run, token: Token | None) -> None:
    """A listener for callers that want only the result."""


@dataclass(eq=False)
class Request:
    prompt_ids: list[int]
    sampling: Sampling
    runs: list[Run]  # one for each of the n samples or best beams
    listener: Listener = ignore
    priority: int = 0  # the highest goes first
    forced: list[int] = field(default_factory=list)  # the tokens that the answer continues with
    pause: Pause | None = None  # where its runs are interrupted; they can be continued by another request
    drafts: bool = True  # whether guessing ahead is allowed; it never changes a token
    arrived: float = field(default_factory=perf_counter)
    started: float | None = None  # when its first step was planned
    abandoned: Ending | None = None  # how it has to end, once its listener has failed
    keep: Callable[[Run], None] | None = None  # given each run at its end; as quick as a listener
    owner: str = field(default_factory=current_owner)  # the client whose request it is
    own_time: OwnTime = field(default_factory=OwnTime, repr=False)  # of its stages that are not built in
    realm: str = field(default_factory=current_realm)  # its owner, if clients are kept apart
    adapter: int = 0  # the number of the adapter that the options name, 0: none; set when it is queued
    # What was built from the options, or why it could not be. Made by `LLM` on the caller's thread.
    built: Compiled | GlassloopError | None = None

    def __post_init__(self) -> None:
        self._kept = len(self.runs[0].tokens) if self.runs else 0  # tokens that the runs had before

    @property
    def compiled(self) -> Compiled:
        """The compiled options. Raises if compiling them failed or was not done."""
        if isinstance(self.built, GlassloopError):
            raise self.built
        if self.built is None:
            raise GlassloopError("the request's options are not compiled; LLM.prepare does that")
        return self.built

    @property
    def ended(self) -> bool:
        return all(run.finish_reason is not None for run in self.runs)

    def tell(self, run: Run, token: Token | None) -> None:
        """Tells the listener of a token, or with None of the end of a run, which is kept then."""
        if token is None:
            written = len(run.tokens) - self._kept
            run.pending = [] if run.end is not None else self.forced[written:]
            self._keep(run)
        self._inform(run, token)

    def _keep(self, run: Run) -> None:
        if self.keep is not None:
            try:
                self.keep(run)
            except BaseException as error:  # the engine's thread serves others too
                contained(error, "keep")
                _LOG.exception("run %s could not be kept", run.id)

    def tell_taken_back(self, run: Run, token: TakenBack) -> None:
        """Tells the listener that the last tokens of a run were taken back. The run, which stays as it is, is
        kept; `token.run` continues in its place."""
        self._keep(run)
        self._inform(run, token)

    def fail(self, error: Exception) -> None:
        """Ends all runs with an error before any of them has begun."""
        for run in self.runs:
            run.error, run.finish_reason, run.stop_reason = error, "error", str(error)
            run.tail = text_held_back(run.tokens)
            self.tell(run, None)

    def drop_runs(self, first: int) -> None:
        """Removes the runs from `first` on, for which there is no text. The listener is told of their end."""
        dropped = self.runs[first:]
        del self.runs[first:]
        for run in dropped:
            run.finish_reason, run.stop_reason = "cancelled", "there are no more texts"
            self._inform(run, None)

    def _inform(self, run: Run, token: Token | None) -> None:
        try:
            self.listener(run, token)
        except BaseException as error:  # the engine's thread serves others too
            failure = described(contained(error, "it"))
            _LOG.exception("the listener of run %s failed", run.id)
            self.listener, self.abandoned = ignore, Ending("cancelled", f"the listener failed: {failure}")

    def overdue(self) -> Ending | None:
        timeout = self.sampling.timeout
        if timeout is not None and self.seconds >= timeout:
            return Ending("timeout", f"after {timeout:g} s")
        return self.abandoned

    def begin(self, now: float, cached: int) -> None:
        self.started = now
        # Other clients may have computed it, whose texts must not be found out token by token.
        if self.owner and not self.realm:
            cached -= cached % PAGE
        for run in self.runs:
            run.timings.queue = now - self.arrived
            run.cached_tokens = cached

    def count(self, counters: Counters) -> None:
        counters.finished += 1
        counters.prompt_tokens += len(self.prompt_ids)
        # A fork also finds tokens of the answer that it continues.
        counters.prompt_tokens_cached += min(self.runs[0].cached_tokens, len(self.prompt_ids))

    @property
    def seconds(self) -> float:
        """The time since the request arrived."""
        return perf_counter() - self.arrived


def draw_seed() -> int:
    """Returns a random seed for a request that has none."""
    return int.from_bytes(os.urandom(4))


def runs_of(sampling: Sampling, make: Callable[[int, int], Run]) -> list[Run]:
    """Returns the runs of a request. `make` is given the seed, drawn here if there is none, and a number."""
    seed = draw_seed() if sampling.seed is None else sampling.seed
    runs = [make(seed, number) for number in range(sampling.n)]
    for run in runs:
        run.samples = runs
    return runs
