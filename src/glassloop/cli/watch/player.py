"""What the two apps of `watch` share: a run is shown at one of its moments (a token, or a pass of diffusion),
played, followed while it is live, explained and kept.

The engine fills the run in a thread of its own; a timer reads how far it has come. Calls that need the model
run in a worker, so that no key has to wait.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from textual import work
from textual.app import App
from textual.binding import Binding
from textual.css.query import NoMatches
from textual.widgets import Static
from textual.worker import get_current_worker

from glassloop.cli.stored_runs import keep
from glassloop.cli.terminal import visible
from glassloop.cli.watch.keys import Key, hints
from glassloop.cli.watch.panels import key_line
from glassloop.cli.watch.style import STYLE
from glassloop.errors import GlassloopError

if TYPE_CHECKING:
    from glassloop.cli.loading import AnyEngine
    from glassloop.decode.explain import Explanation
    from glassloop.engine.request import Request
    from glassloop.record.run import Run

_TICK = 0.1  # seconds; drawing more often would slow down the engine
_STILL = 0.15  # seconds that something must be selected before it is explained


def bindings(keys: tuple[Key, ...]) -> list[Binding]:
    return [Binding(key.keys, key.action, key.help, show=False) for key in keys]


class Player(App[None]):
    """Shows a run, plays it, and follows it while it is live. Its state is the run, the moment `at`, and the
    mode."""

    CSS = STYLE
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    VERTICAL_BREAKPOINTS = [(0, "-low"), (28, "-high")]  # noqa: RUF012
    pace = 0.1  # seconds per moment when a recorded run is played

    def __init__(self, llm: AnyEngine, run: Run, request: Request | None, store: bool) -> None:
        super().__init__()
        self.llm = llm
        self.run_shown = run
        self.at = 0
        # Paused, moving on at the speed of a reader, or at the newest moment of a live run.
        self.mode: Literal["still", "playing", "following"] = "still"
        self.live: list[Request] = [] if request is None else [request]
        self._store = store
        self._unkept: list[Run] = []
        self._seen = -1  # how many moments the screen shows
        self._next = 0.0  # the time of the next move while playing
        self._explained: dict[tuple[str, int, int | None], Explanation | str] = {}

    # ── what the apps define ───────────────────────────────────────────────────────────────────────────────

    @property
    def count(self) -> int:
        """The number of moments of the run so far."""
        raise NotImplementedError

    def go(self, at: int) -> None:
        """Shows a moment of the run, the nearest one that exists."""
        raise NotImplementedError

    def paint(self) -> None:
        """Draws every panel, and sets `_seen`."""
        raise NotImplementedError

    def draw(self) -> None:
        """Draws the screen, if it is still there: the clock and the workers may outlive it."""
        with suppress(NoMatches):
            self.paint()

    # ── time ───────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_live(self) -> bool:
        return self.run_shown.finish_reason is None

    def begin(self, keys: tuple[Key, ...]) -> None:
        """Names the keys, starts the clock and the request, if there is one, and shows the first moment."""
        self.query_one("#keys", Static).update(key_line(hints(keys)))
        self.set_interval(_TICK, self._tick)
        for request in self.live:
            self.submit(request)
        self.go(0)

    def submit(self, request: Request) -> None:
        self.mode = "following"
        self.llm.submit(request)

    def _tick(self) -> None:
        for request in [each for each in self.live if each.ended]:
            self.ended(request)
        if self.mode == "following" and self.count and self.at != self.count - 1:
            self.go(self.count - 1)
        elif self.mode == "playing" and time.monotonic() >= self._next:
            self._next = time.monotonic() + self.pace
            if self.at + 1 < self.count:
                self.go(self.at + 1)
            else:
                self.mode = "following" if self.is_live else "still"
                self.draw()
        elif self.count != self._seen:
            self.draw() if self._seen > 0 else self.go(self.at)

    def ended(self, request: Request) -> None:
        """Shows the end of a request, and keeps its runs."""
        self.live.remove(request)
        if self.mode == "following" and self.run_shown in request.runs:
            self.mode = "still"
            self.go(self.count - 1)
        error = next((run.error for run in request.runs if run.error is not None), None)
        if error is not None:
            self.warn(str(error))
        elif self._store:
            self._unkept += request.runs
            self._keep(request.runs)
        self.draw()

    @work(thread=True, group="keep")
    def _keep(self, runs: list[Run]) -> None:
        if keep(runs):
            for run in runs:
                self._unkept.remove(run)

    def finish(self) -> None:
        """Cancels live runs and keeps what they have. Called when the screen is closed."""
        for request in self.live:
            self.llm.engine.cancel(request, wait=True)
            if self._store:
                self._unkept += [
                    run for run in request.runs if run.error is None and (run.tokens or run.passes)
                ]
        if self._unkept:
            keep(self._unkept)

    # ── explanations ───────────────────────────────────────────────────────────────────────────────────────

    def ask_why(self, place: int, number: int | None = None) -> None:
        """Has the token at this place explained, in pass `number` if that is given, unless it was before."""
        if (self.run_shown.id, place, number) not in self._explained:
            self._explain(self.run_shown, place, number)

    def why(self, place: int, number: int | None = None) -> Explanation | str | None:
        """Returns an explanation or the error instead; None until there is one."""
        return self._explained.get((self.run_shown.id, place, number))

    @work(thread=True, exclusive=True, group="why")
    def _explain(self, run: Run, place: int, number: int | None) -> None:
        worker = get_current_worker()
        time.sleep(_STILL)
        if worker.is_cancelled:
            return
        in_pass: dict[str, Any] = {} if number is None else {"number": number}
        try:
            explanation: Explanation | str = self.llm.explain(run, place, **in_pass)
        except GlassloopError as error:
            explanation = str(error)
        self._explained[run.id, place, number] = explanation
        self.call_from_thread(self.draw)

    def warn(self, text: str) -> None:
        self.notify(visible(text), severity="warning", markup=False)

    # ── keys ───────────────────────────────────────────────────────────────────────────────────────────────

    def pause_at(self, at: int) -> None:
        self.mode = "still"
        self.go(at)

    def action_move(self, by: int) -> None:
        if self.count:  # until there is a moment, the mode stays as it is
            self.pause_at(self.at + by)

    def action_end(self, side: int) -> None:
        if self.count:
            self.mode = "following" if side > 0 and self.is_live else "still"
            self.go(0 if side < 0 else self.count - 1)

    def action_play(self) -> None:
        if self.mode != "still":
            self.mode = "still"
        elif self.at < self.count - 1:
            self.mode = "playing"
        elif self.is_live:
            self.mode = "following"
        else:
            self.go(0)
            self.mode = "playing"
        self._next = time.monotonic() + self.pace
        self.draw()

    def action_stop(self) -> None:
        for request in self.live:
            if self.run_shown in request.runs:
                self.llm.cancel(request)
