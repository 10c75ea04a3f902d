"""The runs that the server knows, grouped in trees, and the events that clients follow.

The engine reports tokens on its own thread; `Hub` passes them to the event loop, many at a time. There each
becomes an event of its tree. Events are numbered and never change, so a client that lost its connection
continues where it was.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from time import perf_counter
from typing import Literal, NamedTuple

from glassloop.diffuse.frames import Frames
from glassloop.engine.request import Request
from glassloop.record.passes import PassRecord
from glassloop.record.run import Run
from glassloop.record.token import Token
from glassloop.server.http.clients import owner_of_runs

_LONGEST = 0.01  # seconds that the event loop delivers tokens before it does something else
ELSEWHERE = "elsewhere"  # the status of a run that another server computes now


class Event(NamedTuple):
    kind: Literal["run", "token", "pass", "taken_back", "end"]
    state: RunState
    place: int  # of the token or the pass in its run; of a taken_back event, how many tokens are left
    token: Token | None


class RunState:
    """A run and what the server knows about it."""

    def __init__(self, run: Run, tree: TreeState, name: str | None = None, owner: str | None = None) -> None:
        self.run = run
        self.tree = tree
        self.name = name  # of a strategy
        # The key whose run it is, as a digest, or nothing; that of the request in hand if not given.
        self.owner = owner_of_runs() if owner is None else owner
        self.added = time.time()  # the order of lists
        self.request: Request | None = None  # while it is computed
        self.sent = len(run.tokens)  # tokens that are in the tree's log, or are a parent's
        self.written = self.sent  # tokens that are in the store, or on their way there
        self.is_elsewhere = False  # another server computes it now
        self.counts_forks = True  # its run knows of all of its forks; one of the store may have more
        self.model: str | None = None  # its model as it is recorded, where that is a path
        self.users = 0  # HTTP requests that still need it
        # The run in its place, once its last tokens were taken back. The engine's thread sets the first, the
        # event loop the second when it hears of it.
        self.heir: RunState | None = None
        self.successor: RunState | None = None
        self.root: str | None = None  # the node of its prompt
        self.nodes: list[str] = []  # of its tokens, as far as they are computed
        self.prompt: str | None = None  # the decoded prompt, once it was asked for
        self.title: str | None = None  # the same of its title
        self.frames: Frames | None = None  # of a text that is written by diffusion, for its events

    @property
    def latest(self) -> RunState:
        """The run that is in the place of this one now: itself, unless tokens were taken back."""
        state = self
        while state.successor is not None:
            state = state.successor
        return state

    @property
    def status(self) -> str:
        if self.request is not None:
            return "waiting" if self.request.started is None else "running"
        if self.is_elsewhere:
            return ELSEWHERE
        can_continue = self.run.sampling.beam_width == 1 and self.run.diffusion is None
        return status_of(self.run.finish_reason, can_continue)


def status_of(finish_reason: str | None, can_continue: bool) -> str:
    """Returns the status of a run that is not being computed. A stopped one can go on, unless it is a beam
    search or was written by diffusion."""
    if finish_reason == "error":
        return "failed"
    return "paused" if finish_reason == "cancelled" and can_continue else "done"


class TreeState:
    """Runs that belong together, and the log of their events."""

    def __init__(self, id: str | None = None) -> None:
        self.id = id or secrets.token_hex(8)
        self.states: dict[str, RunState] = {}
        self.log: list[Event | None] = []  # None in place of an event of a forgotten run
        self._places: dict[RunState, list[int]] = {}  # of each run's events in the log
        self._followers: set[asyncio.Event] = set()

    def add(self, event: Event) -> None:
        self._places.setdefault(event.state, []).append(len(self.log))
        self.log.append(event)
        self.wake()

    @property
    def busy(self) -> bool:
        return any(state.request is not None for state in self.states.values())

    def forget(self, state: RunState) -> None:
        self.states.pop(state.run.id, None)
        for place in self._places.pop(state, ()):
            self.log[place] = None

    async def follow(
        self, after: int, over: Callable[[], bool], keep_alive: float | None = None
    ) -> AsyncIterator[tuple[int, Event | None]]:
        """Yields events with their numbers, from the one after `after`, until none is left and `over` is
        true; after `keep_alive` seconds without an event, (0, None)."""
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
                    async with asyncio.timeout(keep_alive):
                        await news.wait()
                except TimeoutError:
                    yield 0, None
        finally:
            self._followers.discard(news)

    def wake(self) -> None:
        """Lets the followers look at the log, and whether it is over, again."""
        for follower in self._followers:
            follower.set()


class Hub:
    """Hands tokens and records of passes from the engine's thread to the event loop. One wake-up carries all
    that have come by then, or as many as take `_LONGEST` seconds: the ends of 128 runs take longer, and what
    else the loop has to do goes on in between."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, deliver: Callable[[RunState, Token | PassRecord | None], None]
    ) -> None:
        self._loop = loop
        self._deliver = deliver
        self._pending: deque[tuple[RunState, Token | PassRecord | None]] = deque()
        self._scheduled = False

    def put(self, state: RunState, token: Token | PassRecord | None) -> None:
        self._pending.append((state, token))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._deliver_all)

    def _deliver_all(self) -> None:
        # Before the deque is read, so that a token that comes meanwhile schedules another call.
        self._scheduled = False
        until = perf_counter() + _LONGEST
        while self._pending:
            if perf_counter() > until:
                if not self._scheduled:
                    self._scheduled = True
                    self._loop.call_soon(self._deliver_all)
                return
            self._deliver(*self._pending.popleft())
