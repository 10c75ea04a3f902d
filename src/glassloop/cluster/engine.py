"""`ClusterEngine`: an engine whose requests are computed by replicas elsewhere. It prepares requests itself,
from the tokenizer and the config of the model, and keeps the record of every run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import TimeoutError as NotYet
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, cast

from glassloop.cluster.board import Board
from glassloop.cluster.fleet import PATIENCE, STALL, Fleet, Transport
from glassloop.cluster.messages import Identity, Question, Report, Route
from glassloop.decode.defaults import default_sampling, with_defaults
from glassloop.engine.deadline import Deadline
from glassloop.engine.follow import raise_error
from glassloop.engine.protocol import Engine, Handover, Statistics, Unavailable
from glassloop.engine.request import Request
from glassloop.engine.thread import Busy
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import CATALOG, DEFAULT_MODEL, fetch
from glassloop.ops.quant import Float32
from glassloop.text.pieces import Pieces
from glassloop.trace.file import to_bytes
from glassloop.trace.run import Run

if TYPE_CHECKING:
    from glassloop.decode.explain import Explanation
    from glassloop.engine.lens import Attention, Layers, Neighbours, Text
    from glassloop.trace.verdict import Verdict

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
        if self._identity is None or not self._board.usable(self._identity):
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

    def submit(self, request: Request) -> None:
        waiting = self._fleet.unstarted
        if waiting >= self.most_waiting:
            raise Busy(f"{waiting} requests are waiting already; at most {self.most_waiting} are allowed")
        if request.built is None:
            request.built = self.build(request.sampling)
        self._fleet.submit(request, self.identity)

    def cancel(self, request: Request) -> None:
        self._fleet.cancel(request)

    def complete(self, request: Request) -> Run:
        """Computes a request and returns its first run."""
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

    def fork(self, run: Run, at: int, **options: Any) -> Run:
        return self.complete(self.prepare_fork(run, at, **options))

    # ── questions ──────────────────────────────────────────────────────────────────────────────────────────

    def explain(
        self, run: Run, at: int, *, deadline: Deadline | None = None, **overrides: Any
    ) -> Explanation:
        return cast("Explanation", self.ask("explain", run, deadline, at=at, **overrides))

    def replay(
        self, run: Run, *, first: int = 0, strict: bool = True, deadline: Deadline | None = None
    ) -> Verdict:
        return cast("Verdict", self.ask("replay", run, deadline, first=first, strict=strict))

    @property
    def lens(self) -> _Lenses:
        return self._lenses

    def embed(self, token_ids: Sequence[int], *, deadline: Deadline | None = None) -> Float32:
        return cast(Float32, self.ask("embed", list(token_ids), deadline))

    def ask(self, name: str, text: Text, deadline: Deadline | None, **values: Any) -> Any:
        """Asks a replica about a run or a text: one where its tokens may be cached. Not for an event loop."""
        if isinstance(text, Run):
            ids, run = (*text.prompt_ids, *text.token_ids), to_bytes([text])
        else:
            ids, run = () if isinstance(text, str) else tuple(text), None
            values["text"] = text
        route = Route(ids, identity=self.identity)
        answer = self._fleet.ask(
            Question(name, run, values, None if deadline is None else deadline.seconds, route)
        )
        while True:
            try:
                return answer.result(_LOOK_UP)
            except NotYet:
                if answer.done():  # its own error
                    raise
                if deadline is not None and (deadline.cancelled or deadline.expired):
                    answer.cancel()
                    raise deadline.error() from None

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

    def attention(self, text: Text, token: int | str = -1, *, deadline: Deadline | None = None) -> Attention:
        return cast("Attention", self._engine.ask("attention", text, deadline, token=token))

    def layers(
        self, text: Text, token: int | str = -1, count: int = 5, *, deadline: Deadline | None = None
    ) -> Layers:
        return cast("Layers", self._engine.ask("layers", text, deadline, token=token, count=count))

    def neighbours_in(
        self, text: Text, token: int | str = -1, count: int = 10, *, deadline: Deadline | None = None
    ) -> Neighbours:
        return cast("Neighbours", self._engine.ask("neighbours_in", text, deadline, token=token, count=count))
