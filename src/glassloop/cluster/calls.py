"""The calls of an ingress: questions to replicas, each asked again of another one where that is needed.

A question changes nothing and has the same answer everywhere, so the whole of it is repeated when its replica
dies or does not answer. Events that were delivered before are not delivered again. All of it runs on the
event loop of the fleet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

from glassloop.cluster.board import Board
from glassloop.cluster.messages import Gone, Question, Transport
from glassloop.engine.protocol import Unavailable

_RETRY = 0.5  # seconds before a question is asked again
MOST_DEATHS = 8  # replicas that may die of one question or request: it may be what kills them

OnEvent = Callable[[bytes], None]


class _Call:
    """One attempt at a question."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.task: asyncio.Task[bytes] | None = None
        self.replica: str | None = None  # that has it, if it is known
        self.since = time.monotonic()  # when a replica was last there for it
        self.is_stalled = self.is_late = False  # why it was given up

    def give_up(self, *, late: bool) -> None:
        self.is_stalled, self.is_late = not late, late
        if self.task is not None:
            self.task.cancel()


class Calls:
    """The open questions of an ingress. One is given up after `patience` seconds without a replica that could
    answer it."""

    def __init__(
        self, transport: Transport, board: Board, next_key: Callable[[], str], patience: float
    ) -> None:
        self._transport = transport
        self._board = board
        self._next_key = next_key
        self._patience = patience
        self._open: dict[str, _Call] = {}  # by key

    async def ask(self, question: Question, on_event: OnEvent | None = None) -> bytes:
        """Returns the answer of some replica. Raises `Unavailable` if none can be reached."""
        delivered = deaths = 0  # events, replicas
        since = time.monotonic()

        def tell(number: int, event: bytes) -> None:
            nonlocal delivered
            if number >= delivered and on_event is not None:
                delivered += 1
                on_event(event)

        while True:
            key = self._next_key()
            call = _Call(replace(question, route=replace(question.route, key=key)))
            call.since, call.task = since, asyncio.create_task(self._attempt(call, tell))
            self._open[key] = call
            self._board.begin(key)
            try:
                return await call.task
            except asyncio.CancelledError:
                if call.is_late:
                    raise Unavailable(f"no replica could be reached for {self._patience:g} s") from None
                if not call.is_stalled or is_cancelled():
                    raise
            except Gone:
                if call.replica is not None:
                    deaths += 1
                    self._board.suspect(call.replica)
                if deaths == MOST_DEATHS:
                    raise Unavailable(f"{deaths} replicas have died one after the other") from None
                if self._board.usable(question.route.needs):
                    call.since = time.monotonic()
                elif time.monotonic() - call.since > self._patience:
                    raise Unavailable(f"no replica could be reached for {self._patience:g} s") from None
                await asyncio.sleep(_RETRY)
            finally:
                since = call.since
                del self._open[key]
                self._board.end(key)

    def routed(self, key: str, replica: str) -> bool:
        """Notes which replica has a question. Returns whether the key is one of a question."""
        call = self._open.get(key)
        if call is None:
            return False
        call.replica, call.since = replica, time.monotonic()
        self._board.place(key, replica)
        return True

    def look(self, now: float, answers: Callable[[str], bool]) -> None:
        """Gives up the questions whose replica does not answer, if there is another one, and those that wait
        for too long."""
        for call in list(self._open.values()):
            if call.replica is not None and answers(call.replica):
                call.since = now
                continue
            usable = self._board.usable(call.question.route.needs)
            if usable:
                call.since = now
            if call.replica is not None and usable:
                call.give_up(late=False)
            elif now - call.since > self._patience:
                call.give_up(late=True)

    async def _attempt(self, call: _Call, tell: Callable[[int, bytes], None]) -> bytes:
        number = 0
        replies = cast(Any, self._transport.ask(call.question))
        async with aclosing(replies):
            async for reply in replies:
                if reply.is_answer:
                    return cast(bytes, reply.data)
                tell(number, reply.data)
                number += 1
        raise Gone("the replica has ended the call without an answer")


def is_cancelled() -> bool:
    """Returns whether the caller itself has been cancelled, and not only what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
