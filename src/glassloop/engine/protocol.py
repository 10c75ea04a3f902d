"""`Engine`: what a server needs of an engine. `LLM` is the engine in this process; the cluster has one whose
requests are computed by replicas elsewhere, and `upstream` one whose requests another engine computes. The
server uses nothing beyond this interface.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from glassloop.engine.deadline import Deadline
from glassloop.engine.request import Request
from glassloop.engine.request_maker import RequestMaker
from glassloop.errors import GlassloopError
from glassloop.ops.quant import Float32
from glassloop.record.run import Run

# What makes drafts: the lookup alone; beside it a drafter that was trained for the model; or a smaller model.
DrafterKind = Literal["lookup", "drafter", "model"]

if TYPE_CHECKING:
    from glassloop.decode.explain import Explanation
    from glassloop.engine.lens import AttentionWeights, Layers, Neighbours, Text
    from glassloop.engine.tasks.masked import Mask


T = TypeVar("T")
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


class LensReader(Protocol):
    """The lenses of a model, for one token of a run, a text or a list of token ids."""

    def attention(
        self, text: Text, token: int | str = -1, *, deadline: Deadline | None = None
    ) -> AttentionWeights: ...

    def layers(
        self, text: Text, token: int | str = -1, count: int = 5, *, deadline: Deadline | None = None
    ) -> Layers: ...

    def neighbours(
        self, of: int | str, count: int = 10, *, deadline: Deadline | None = None
    ) -> Neighbours: ...

    def neighbours_in(
        self, text: Text, token: int | str = -1, count: int = 10, *, deadline: Deadline | None = None
    ) -> Neighbours: ...


class Engine(RequestMaker, ABC):
    """Computes requests, and what is asked about runs. Everything may be called from any thread."""

    def check_computes(self, what: str) -> None:
        """Raises if this engine has no model of its own but asks another one: searches, edits and diffusion
        need more than that one offers."""
        raise GlassloopError.about(what, "is given; only an engine with a model of its own computes that")

    @property
    def mask(self) -> Mask:
        """What masked rows are for the model. Raises if it has been trained on none. Not for an event
        loop."""
        self.check_computes("diffusion")
        raise NotImplementedError

    @abstractmethod
    def submit(self, request: Request, may_refuse: bool = True) -> None:
        """Queues a request; its listener is told of the tokens. If `may_refuse`, raises `Busy` where too many
        wait already."""

    @abstractmethod
    def cancel(self, request: Request, wait: bool = False, run: Run | None = None) -> None:
        """Ends a request soon, as cancelled, with the tokens that it has, or with `run` this run of it alone;
        the runs of a beam search end together. With `wait`, returns when it has given back what it held."""

    def check_may_wait(self) -> None:
        """Raises on the engine's own thread, on which listeners are called: a call that waits for the engine
        would wait for ever."""

    def after_step(self, job: Callable[[], object]) -> None:
        """Calls a function after the current step. For listeners that are told of the end of a run and want
        to continue it by another request, which is possible only then."""
        job()

    def apply(
        self,
        function: Callable[..., T],
        *args: Any,
        deadline: Deadline | None = None,
        on_event: Callable[[Any], None] | None = None,
        **options: Any,
    ) -> T:
        """Returns `function(llm, *args, deadline=deadline, **options)`, where `llm` is an engine with the
        model in its process: this one, or that of a replica, and then of another one if that replica dies.

        So `function` is at the top level of a module, is given plain values and runs, and returns such; what
        it draws has a seed among them. With `on_event`, it is given an `on_event` to tell of its progress in
        plain values, the same in the same order whenever it is called; each is told here once. Raises for an
        engine that has no model of its own. Not for an event loop.
        """
        self.check_computes(function.__name__)
        raise NotImplementedError

    def forget(self, run: Run) -> None:
        """Forgets a run that was deleted: what the engine keeps of its text, to guess from or not to compute
        it again, goes as far as no other text continues it. Where clients are kept apart, only what was kept
        for the one in this context. Not for an event loop."""

    @abstractmethod
    def explain(
        self, run: Run, at: int, *, deadline: Deadline | None = None, **overrides: Any
    ) -> Explanation:
        """Returns why the token at this place of a run is there; `explain_token` has the options."""

    @property
    @abstractmethod
    def lens(self) -> LensReader:
        """The lenses, computed when they are asked for."""

    @abstractmethod
    def embed(self, token_ids: Sequence[int], *, deadline: Deadline | None = None) -> Float32:
        """Returns the mean of the last hidden states of all tokens, [dim]."""

    @abstractmethod
    def statistics(self) -> list[Statistics]:
        """Returns the state of the engine, or one entry for each replica. It must be quick."""

    @property
    def ready(self) -> bool:
        """Whether a request that comes now would be computed."""
        return True

    @property
    def drafter(self) -> DrafterKind | None:
        """What makes drafts, or None: nothing does, or it is not known here."""
        return None

    @property
    def can_diffuse(self) -> bool:
        """Whether texts can be written by diffusion: the model has masked rows, or an adapter for them."""
        return False

    @property
    def upstream(self) -> str | None:
        """The other engine behind this one, in a few words, or None: much is not known of its runs then."""
        return None

    @property
    def problem(self) -> str | None:
        """What is wrong with the engine or its replicas now, or None."""
        return None

    def handovers(self) -> list[Handover]:
        """Returns the latest requests that were continued on another replica, the oldest first."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Ends what runs, as cancelled, and frees what the engine holds."""
