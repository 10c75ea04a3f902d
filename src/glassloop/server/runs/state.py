"""Runs while they are made and as long as they are kept, and whoever looks on.

The engine tells of tokens on its own thread; the `Hub` carries them over to the server's, many at a time.
There each becomes an event of its tree, numbered and never changed, so a follower who lost the connection
reads on where it was.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Literal, NamedTuple

from glassloop.engine.request import Request
from glassloop.trace.run import Run
from glassloop.trace.token import Token

Kind = Literal["run", "token", "end"]


class Event(NamedTuple):
    kind: Kind
    live: Live
    place: int  # of the token in its run
    token: Token | None


class Live:
    """A run that the server knows."""

    def __init__(self, run: Run, tree: Tree, name: str | None = None) -> None:
        self.run = run
        self.tree = tree
        self.name = name  # of a strategy
        self.created = time.time()
        self.request: Request | None = None  # while it is computed
        self.told = len(run.tokens)  # tokens that are in the tree's log, or were kept of a parent
        self.limit: int | None = None  # pause with so many tokens
        self.users = 0  # requests that still need it
        self.chat = False  # its prompt is a conversation
        self.root: str | None = None  # the node of its prompt
        self.nodes: list[str] = []  # of the tree of texts, as far as they are known
        self.prompt: str | None = None  # its text, once somebody asked

    @property
    def status(self) -> str:
        if self.request is not None:
            return "waiting" if self.request.started is None else "running"
        return status_of(self.run.finish_reason, self.run.sampling.beam_width)


def status_of(finish_reason: str | None, beam_width: int) -> str:
    """The status of a run that is not computed now. One that was stopped can go on, unless it is a search."""
    if finish_reason == "error":
        return "failed"
    return "paused" if finish_reason == "cancelled" and beam_width == 1 else "done"


class Tree:
    """Runs that belong together, and the log of what happened to them."""

    def __init__(self, id: str | None = None) -> None:
        self.id = id or secrets.token_hex(8)
        self.lives: dict[str, Live] = {}
        self.log: list[Event | None] = []  # None: of a run that is forgotten
        self._places: dict[Live, list[int]] = {}  # of each run's events in the log
        self._followers: set[asyncio.Event] = set()

    def add(self, event: Event) -> None:
        self._places.setdefault(event.live, []).append(len(self.log))
        self.log.append(event)
        for follower in self._followers:
            follower.set()

    @property
    def busy(self) -> bool:
        return any(live.request is not None for live in self.lives.values())

    def forget(self, live: Live) -> None:
        self.lives.pop(live.run.id, None)
        for place in self._places.pop(live, ()):
            self.log[place] = None

    async def follow(
        self, after: int, over: Callable[[], bool], beat: float | None = None
    ) -> AsyncIterator[tuple[int, Event | None]]:
        """Events with their numbers, from the one after `after`, until `over` says so with none left; and
        every `beat` seconds without one (0, None)."""
        news = asyncio.Event()
        self._followers.add(news)
        at = min(after, len(self.log))
        try:
            while True:
                news.clear()
                while at < len(self.log):
                    event = self.log[at]
                    at += 1
                    if event is not None:
                        yield at, event
                if over():
                    return
                try:
                    async with asyncio.timeout(beat):
                        await news.wait()
                except TimeoutError:
                    yield 0, None
        finally:
            self._followers.discard(news)

    def wake(self) -> None:
        for follower in self._followers:
            follower.set()


Deliver = Callable[[Live, Token | None], None]


class Hub:
    """From the engine's thread to the server's. One wake-up carries all that has come by then."""

    def __init__(self, home: asyncio.AbstractEventLoop, deliver: Deliver) -> None:
        self._home = home
        self._deliver = deliver
        self._letters: deque[tuple[Live, Token | None]] = deque()
        self._called = False

    def put(self, live: Live, token: Token | None) -> None:
        self._letters.append((live, token))
        if not self._called:
            self._called = True
            self._home.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        # Before the letters are read, so that what comes meanwhile calls again.
        self._called = False
        while self._letters:
            self._deliver(*self._letters.popleft())
