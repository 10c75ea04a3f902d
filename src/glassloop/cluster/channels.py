"""The channels of an ingress: one stream from each replica, which carries bulletins and is its sign of life.
All of it runs on the event loop of the fleet.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from glassloop.cluster.board import Board
from glassloop.cluster.messages import Bulletin, Gone, Transport

_LOG = logging.getLogger(__name__)
_RETRY = 0.5  # seconds before a replica that could not be reached is tried again


class Channels:
    """`hear` is called with each bulletin of a replica, `lost` when its stream breaks. A channel is kept as
    long as Ray Serve has the replica or `is_needed` says so."""

    def __init__(
        self,
        transport: Transport,
        board: Board,
        session: str,
        stall: float,
        *,
        hear: Callable[[str, Bulletin], None],
        lost: Callable[[str], None],
        is_needed: Callable[[str], bool],
    ) -> None:
        self._transport = transport
        self._board = board
        self._session = session
        self._stall = stall
        self._hear = hear
        self._lost = lost
        self._is_needed = is_needed
        self._open: dict[str, asyncio.Task[None]] = {}
        self._heard: dict[str, float] = {}  # when a replica gave the last sign of life

    def update(self) -> None:
        """Listens to every replica that is new, and no longer to those that have gone."""
        for name in self._open.keys() - self._board.replicas:
            if not self._is_needed(name):
                self._open[name].cancel()  # it would keep the replica from ending
        for name in self._board.replicas - self._open.keys():
            self._heard[name] = time.monotonic()
            self._open[name] = asyncio.create_task(self._listen(name))

    def answers(self, name: str) -> bool:
        """Returns whether a replica has given a sign of life lately."""
        return time.monotonic() - self._heard.get(name, -1e9) <= self._stall

    def suspect_silent(self) -> None:
        for name in self._heard:
            if not self.answers(name):
                self._board.suspect(name)

    def forgive(self, seconds: float) -> None:
        """Extends all deadlines by the time for which this process itself was stalled."""
        for name in self._heard:
            self._heard[name] += seconds

    async def _listen(self, name: str) -> None:
        """Hears what a replica tells, as long as there is one."""
        try:
            while name in self._board.replicas or self._is_needed(name):
                try:
                    async for bulletin in self._transport.open(name, self._session):
                        self._heard[name] = time.monotonic()
                        self._board.suspect(name, False)
                        self._hear(name, bulletin)
                except Exception as error:
                    if not isinstance(error, Gone):
                        _LOG.exception("the stream of replica %s has failed", name)
                    self._board.suspect(name)
                    self._lost(name)
                    await asyncio.sleep(_RETRY)
        finally:
            self._open.pop(name, None)
            self._heard.pop(name, None)
