"""`ClusterEngine`: an engine whose requests are computed by replicas elsewhere. It prepares requests itself,
from the tokenizer and the config of the model, and keeps the record of every run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import TimeoutError as NotYet
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar, cast

from glassloop.api.llm import LLM
from glassloop.cluster.board import Board
from glassloop.cluster.fleet import PATIENCE, STALL, Fleet
from glassloop.cluster.messages import Identity, Needs, Question, Report, Route
from glassloop.cluster.pickling import dumps, loads
from glassloop.cluster.transport import Transport
from glassloop.decode.defaults import default_sampling, with_defaults
from glassloop.decode.sampling import Sampling
from glassloop.engine.deadline import Deadline
from glassloop.engine.follow import raise_error
from glassloop.engine.owner import current_owner, current_realm
from glassloop.engine.protocol import Engine, Handover, Statistics, Unavailable
from glassloop.engine.request import Request
from glassloop.engine.tasks.masked import Mask
from glassloop.engine.thread import Busy
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import CATALOG, DEFAULT_MODEL, fetch
from glassloop.ops.quant import Float32
from glassloop.record.run import Run
from glassloop.text.pieces import Pieces

if TYPE_CHECKING:
    from glassloop.decode.explain import Explanation
    from glassloop.engine.lens import AttentionWeights, Layers, Neighbours, Text
    from glassloop.record.verdict import ReplayVerdict

T = TypeVar("T")
_FORGET_SECONDS = 10.0  # that replicas have to forget a run
_LOOK_UP = 0.1  # seconds between two looks at the deadline of a question


class ClusterEngine(Engine):
    """A model that replicas compute.

    `most_waiting` requests may wait for their first token. A replica without a sign of life for `stall`
    seconds is given up, and a request waits at most `patience` seconds for another one that is equal.
    """

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
        self.name = str(model)
        self.drafts = draft
        self.most_waiting = most_waiting
        files = ModelFiles(fetch(self.name))
        self.config, self.tokenizer = files.config, files.tokenizer()
        known = (CATALOG[self.name].sampling if self.name in CATALOG else None) or {}
        self.default_sampling = with_defaults(known, default_sampling(str(files.path), files.settings))
        self._pieces = Pieces(self.tokenizer)
        self._identity: Identity | None = None
        self._mask: tuple[Identity, Mask] | None = None  # of the replicas with this identity
        self._lenses = _Lenses(self)
        self._board = board
        self._fleet = Fleet(transport, board, self.piece, stall=stall, patience=patience)

    def wait(self, replicas: int = 1, seconds: float = 300.0) -> None:
        """Returns when this many replicas have reported. Raises if that takes too long."""
        until = time.monotonic() + seconds
        while len(self._board.usable()) < replicas:
            if time.monotonic() > until:
                found = len(self._board.usable())
                raise Unavailable(f"after {seconds:g} s {found} of {replicas} replicas have reported")
            time.sleep(0.02)

    # ── the model ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def identity(self) -> Identity:
        """The model and the op set of new requests: as before, as long as a replica has them."""
        if self._identity is None or not self._board.usable(Needs(self._identity)):
            reports = self._reports()
            if reports:
                self._identity = reports[0].identity
        if self._identity is None:
            raise Unavailable("no replica has reported yet")
        return self._identity

    @property
    def op_set(self) -> str:
        return self.identity.op_set

    @property
    def model_hash(self) -> str:
        return self.identity.model_hash

    @property
    def adapters(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for report in reversed(self._reports()):
            if report.identity == self.identity:
                found.update(report.adapters)
        return found

    @property
    def mask(self) -> Mask:
        if self._mask is None or self._mask[0] != self.identity:
            self._mask = self.identity, self.ask(_mask_of)
        return self._mask[1]

    @property
    def can_diffuse(self) -> bool:
        return any(report.can_diffuse for report in self._reports())

    @property
    def kv_memory(self) -> int:
        return sum(report.statistics.kv_memory for report in self._reports())

    def has_room(self, tokens: int) -> bool:
        rooms = [report.room for report in self._reports()]
        return not rooms or tokens <= min(rooms)

    def _reports(self) -> list[Report]:
        """Returns the reports of the replicas that answer."""
        reports = self._board.reports
        return [reports[name] for name in self._board.usable() if name in reports]

    # ── requests ───────────────────────────────────────────────────────────────────────────────────────────

    def check_computes(self, what: str) -> None:
        pass

    def submit(self, request: Request, may_refuse: bool = True) -> None:
        waiting = self._fleet.unstarted
        if may_refuse and waiting >= self.most_waiting:
            raise Busy(f"{waiting} requests are waiting already; at most {self.most_waiting} are allowed")
        if request.built is None:
            request.built = self.build(request.sampling)
        name, run = request.sampling.adapter, request.runs[0]
        adapter = None if name is None else (name, run.adapters[name])
        self._fleet.submit(request, Needs(self.identity, adapter))

    def cancel(self, request: Request, wait: bool = False, run: Run | None = None) -> None:
        if run is None or request.sampling.beam_width > 1:
            self._fleet.cancel(request, wait)
        else:
            self._fleet.cancel_run(request, run)

    def check_may_wait(self) -> None:
        self._fleet.check_may_wait()

    def complete(self, request: Request) -> Run:
        """Computes a request and returns its first run."""
        self.check_may_wait()
        ended = Event()
        request.listener = lambda run, token: ended.set() if token is None and request.ended else None
        self.submit(request)
        try:
            ended.wait()
        except BaseException:
            self.cancel(request)
            raise
        raise_error(request.runs[0])
        return request.runs[0]

    def forget(self, run: Run) -> None:
        """Asks every replica to forget a run. One that does not answer soon is taken for dead, and has
        forgotten everything."""
        self.check_may_wait()
        call = dumps((_forget, (run,), {}))
        owner, realm = current_owner(), current_realm()
        asked = [
            self._fleet.ask(Question(call, _FORGET_SECONDS, owner=owner, realm=realm, route=Route(only=name)))
            for name in self._board.usable()
        ]
        until = time.monotonic() + _FORGET_SECONDS
        for answer in asked:
            try:
                answer.result(max(0.0, until - time.monotonic()))
            except (NotYet, Unavailable):
                answer.cancel()

    def fork(self, run: Run, at: int, **options: Any) -> Run:
        return self.complete(self.prepare_fork(run, at, **options))

    # ── questions ──────────────────────────────────────────────────────────────────────────────────────────

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
        found = self._ask(LLM.replay, (run,), {"first": first, "strict": strict}, deadline, is_long=True)
        return cast("ReplayVerdict", found)

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
        answer = self._fleet.ask(question, tell)
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
        known = self.adapters
        # An adapter that no replica has is for the function to refuse.
        adapter = next(((name, known[name]) for name in names if name in known), None)
        return Route(ids, needs=Needs(self.identity, adapter), realm=current_realm())

    # ── operation ──────────────────────────────────────────────────────────────────────────────────────────

    def statistics(self) -> list[Statistics]:
        # The name that the replicas know may be a path.
        reports = sorted(self._board.reports.items())
        return [replace(report.statistics, model=self.name) for _, report in reports]

    @property
    def ready(self) -> bool:
        return bool(self._board.usable())

    @property
    def problem(self) -> str | None:
        known, usable = self._board.replicas, self._board.usable()
        if not usable:
            return "no replica answers"
        silent = len(known) - len(usable)
        return f"{silent} of {len(known)} replicas do not answer" if silent else None

    def handovers(self) -> list[Handover]:
        return self._fleet.handovers()

    def close(self) -> None:
        self._fleet.close()


class _Lenses:
    """The lenses, computed by a replica."""

    def __init__(self, engine: ClusterEngine) -> None:
        self._engine = engine

    def attention(
        self, text: Text, token: int | str = -1, *, deadline: Deadline | None = None
    ) -> AttentionWeights:
        return cast("AttentionWeights", self._read("attention", text, token, deadline=deadline))

    def layers(
        self, text: Text, token: int | str = -1, count: int = 5, *, deadline: Deadline | None = None
    ) -> Layers:
        return cast("Layers", self._read("layers", text, token, count, deadline=deadline))

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
