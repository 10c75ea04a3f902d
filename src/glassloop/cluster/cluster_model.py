"""`ClusterModel`: a language model that replicas compute. Requests are prepared here, from the tokenizer and
the config of the model, and here the record of every run is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import TimeoutError as NotYet
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from glassloop.api.llm import LLM
from glassloop.cluster.board import Board
from glassloop.cluster.fleet import PATIENCE, STALL, Fleet
from glassloop.cluster.messages import Identity, Needs, Question, Route, Transport
from glassloop.cluster.pickling import dumps, loads
from glassloop.decode.defaults import default_sampling, with_defaults
from glassloop.decode.sampling import Sampling
from glassloop.engine.deadline import Deadline
from glassloop.engine.language_model import LanguageModel
from glassloop.engine.owner import current_owner, current_realm
from glassloop.engine.protocol import Handover, Unavailable
from glassloop.engine.request_maker import RequestMaker
from glassloop.engine.tasks.masked import Mask
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import CATALOG, DEFAULT_MODEL, fetch
from glassloop.ops.quant import Float32
from glassloop.record.run import Run

if TYPE_CHECKING:
    from glassloop.decode.explain import Explanation
    from glassloop.engine.expert_routes import ExpertRoutes
    from glassloop.engine.lens_results import AttentionWeights, Layers, Neighbours, Text
    from glassloop.record.verdict import ReplayVerdict

T = TypeVar("T")
_FORGET_SECONDS = 10.0  # that replicas have to forget a run
_LOOK_UP = 0.1  # seconds between two looks at the deadline of a question


class ClusterModel(LanguageModel):
    """A model that replicas compute; `engine` is the fleet of them.

    `most_waiting` requests may wait for their first token. A replica without a sign of life for `stall`
    seconds is given up, and a request waits at most `patience` seconds for another one that is equal.
    """

    engine: Fleet

    def __init__(
        self,
        transport: Transport,
        board: Board,
        model: str | Path = DEFAULT_MODEL,
        *,
        draft: bool = True,
        most_waiting: int = 1024,
        stall: float = STALL,
        patience: float = PATIENCE,
    ) -> None:
        name = str(model)
        files = ModelFiles(fetch(name))
        published = (CATALOG[name].sampling if name in CATALOG else None) or {}
        self.requests = RequestMaker(
            self,
            name,
            files.config,
            files.tokenizer(),
            default_sampling=with_defaults(published, default_sampling(str(files.path), files.settings)),
            drafts=draft,
        )
        self._mask: tuple[Identity, Mask] | None = None  # of the replicas with this identity
        self._lenses = _Lenses(self)
        self._board = board
        self.engine = Fleet(
            transport,
            board,
            self.requests.piece,
            most_waiting=most_waiting,
            stall=stall,
            patience=patience,
        )

    def wait(self, replicas: int = 1, seconds: float = 300.0) -> None:
        """Returns when this many replicas have reported. Raises if that takes too long."""
        until = time.monotonic() + seconds
        while len(self._board.usable()) < replicas:
            if time.monotonic() > until:
                count = len(self._board.usable())
                raise Unavailable(f"after {seconds:g} s {count} of {replicas} replicas have reported")
            time.sleep(0.02)

    # ── the model ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def op_set(self) -> str:
        return self.engine.identity.op_set

    @property
    def model_hash(self) -> str:
        return self.engine.identity.model_hash

    @property
    def adapters(self) -> dict[str, str]:
        adapters: dict[str, str] = {}
        for report in reversed(self._board.usable_reports()):
            if report.identity == self.engine.identity:
                adapters.update(report.adapters)
        return adapters

    @property
    def mask(self) -> Mask:
        if self._mask is None or self._mask[0] != self.engine.identity:
            self._mask = self.engine.identity, self.ask(_mask_of)
        return self._mask[1]

    @property
    def can_diffuse(self) -> bool:
        return any(report.can_diffuse for report in self._board.usable_reports())

    @property
    def kv_memory(self) -> int:
        return sum(report.statistics.kv_memory for report in self._board.usable_reports())

    def has_room(self, tokens: int) -> bool:
        rooms = [report.room for report in self._board.usable_reports()]
        return not rooms or tokens <= min(rooms)

    # ── questions ──────────────────────────────────────────────────────────────────────────────────────────

    def forget(self, run: Run) -> None:
        """Asks every replica to forget a run. One that does not answer soon is taken for dead, and has
        forgotten everything."""
        self.check_may_wait()
        call = dumps((_forget, (run,), {}))
        owner, realm = current_owner(), current_realm()
        answers = [
            self.engine.ask(Question(call, _FORGET_SECONDS, owner=owner, realm=realm, route=Route(only=name)))
            for name in self._board.usable()
        ]
        until = time.monotonic() + _FORGET_SECONDS
        for answer in answers:
            try:
                answer.result(max(0.0, until - time.monotonic()))
            except (NotYet, Unavailable):
                answer.cancel()

    def apply(
        self,
        function: Callable[..., T],
        *args: Any,
        deadline: Deadline | None = None,
        on_event: Callable[[Any], None] | None = None,
        **options: Any,
    ) -> T:
        return cast(T, self._ask(function, args, options, deadline, on_event, is_long=True))

    def explain(
        self, run: Run, at: int, *, deadline: Deadline | None = None, **overrides: Any
    ) -> Explanation:
        return cast("Explanation", self.ask(LLM.explain, run, at=at, deadline=deadline, **overrides))

    def replay(
        self, run: Run, *, first: int = 0, strict: bool = True, deadline: Deadline | None = None
    ) -> ReplayVerdict:
        verdict = self._ask(LLM.replay, (run,), {"first": first, "strict": strict}, deadline, is_long=True)
        return cast("ReplayVerdict", verdict)

    @property
    def lens(self) -> _Lenses:
        return self._lenses

    def embed(self, token_ids: Sequence[int], *, deadline: Deadline | None = None) -> Float32:
        return cast(Float32, self.ask(LLM.embed, list(token_ids), deadline=deadline))

    def ask(
        self, function: Callable[..., Any], *args: Any, deadline: Deadline | None = None, **options: Any
    ) -> Any:
        """Returns what a function computes with the engine of a replica, for functions that do not take
        long."""
        return self._ask(function, args, options, deadline)

    def _ask(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        options: dict[str, Any],
        deadline: Deadline | None,
        on_event: Callable[[Any], None] | None = None,
        *,
        is_long: bool = False,
    ) -> Any:
        """Calls a function on a replica: one where the tokens of its arguments may be cached. Not for an
        event loop."""
        self.check_may_wait()
        if deadline is not None:
            deadline.check()
        question = Question(
            dumps((function, args, options)),
            None if deadline is None else deadline.seconds,
            is_long,
            on_event is not None,
            current_owner(),
            current_realm(),
            self._route((*args, *options.values())),
        )
        tell = None if on_event is None else lambda event: on_event(loads(event, self))
        answer = self.engine.ask(question, tell)
        while True:
            try:
                return loads(answer.result(_LOOK_UP), self)
            except NotYet:
                if answer.done():  # its own error
                    raise
                if deadline is not None and (deadline.cancelled or deadline.expired):
                    answer.cancel()
                    raise deadline.error() from None

    def _route(self, values: Iterable[Any]) -> Route:
        """Returns where a question with these arguments may go."""
        ids: tuple[int, ...] = ()
        names = []
        for value in values:
            if isinstance(value, Run):
                ids = (*value.prompt_ids, *value.token_ids)
                names.append(value.sampling.adapter)
            elif isinstance(value, Sampling):
                names.append(value.adapter)
            elif isinstance(value, list) and not ids and all(type(each) is int for each in value):
                ids = tuple(value)
        loaded = self.adapters
        # An adapter that no replica has is for the function to refuse.
        adapter = next(((name, loaded[name]) for name in names if name in loaded), None)
        return Route(ids, needs=Needs(self.engine.identity, adapter), realm=current_realm())

    # ── operation ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def ready(self) -> bool:
        return bool(self._board.usable())

    @property
    def problem(self) -> str | None:
        replicas, usable = self._board.replicas, self._board.usable()
        if not usable:
            return "no replica answers"
        silent = len(replicas) - len(usable)
        return f"{silent} of {len(replicas)} replicas do not answer" if silent else None

    def handovers(self) -> list[Handover]:
        return self.engine.handovers()


class _Lenses:
    """The lenses, computed by a replica."""

    def __init__(self, engine: ClusterModel) -> None:
        self._engine = engine

    def attention(
        self, text: Text, token: int | str = -1, *, deadline: Deadline | None = None
    ) -> AttentionWeights:
        return cast("AttentionWeights", self._read("attention", text, token, deadline=deadline))

    def layers(
        self, text: Text, token: int | str = -1, count: int = 5, *, deadline: Deadline | None = None
    ) -> Layers:
        return cast("Layers", self._read("layers", text, token, count, deadline=deadline))

    def experts(self, text: Text, token: int | str = -1, *, deadline: Deadline | None = None) -> ExpertRoutes:
        return cast("ExpertRoutes", self._read("experts", text, token, deadline=deadline))

    def neighbours(self, of: int | str, count: int = 10, *, deadline: Deadline | None = None) -> Neighbours:
        return cast("Neighbours", self._engine.ask(_read_lens, "neighbours", of, count, deadline=deadline))

    def neighbours_in(
        self, text: Text, token: int | str = -1, count: int = 10, *, deadline: Deadline | None = None
    ) -> Neighbours:
        return cast("Neighbours", self._read("neighbours_in", text, token, count, deadline=deadline))

    def _read(self, name: str, text: Text, *args: Any, deadline: Deadline | None) -> Any:
        plain = text if isinstance(text, (str, Run)) else list(text)
        return self._engine.ask(_read_lens, name, plain, *args, deadline=deadline)


def _read_lens(llm: LLM, name: str, *args: Any, deadline: Deadline | None) -> Any:
    return getattr(llm.lens, name)(*args, deadline=deadline)


def _forget(llm: LLM, run: Run, *, deadline: Deadline | None) -> None:
    llm.forget(run)


def _mask_of(llm: LLM, *, deadline: Deadline | None) -> Mask:
    return llm.mask
