"""The app of `watch`. Its state is the run, the token and the alternative that are shown, and the mode.

The engine fills the run in a thread of its own; a timer reads how far it has come. Calls that need the model
run in a worker, so that no key has to wait.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.widgets import Input, Static
from textual.worker import get_current_worker

from glassloop.cli.kept import keep
from glassloop.cli.show import surprise_colour
from glassloop.cli.terminal import quoted, visible
from glassloop.cli.watch.keys import KEYS, hints
from glassloop.cli.watch.layout import cells_of
from glassloop.cli.watch.panels import Bars, Help, TextPanel, TreePanel, Why, key_line, prompt_of, title
from glassloop.cli.watch.style import STYLE
from glassloop.errors import GlassloopError
from glassloop.trace.shares import Share, shares

if TYPE_CHECKING:
    from glassloop.cli.kept import AnyEngine
    from glassloop.decode.explain import Explanation
    from glassloop.engine.request import Request
    from glassloop.trace.run import Run
    from glassloop.trace.token import Token

_TICK = 0.1  # seconds; drawing more often would slow down the engine
_READING = 0.1  # seconds per token when a recorded run is played
_STILL = 0.15  # seconds that a token must be selected before it is explained


class Watch(App[None]):
    """Shows a run, follows it while it is generated, and forks it."""

    CSS = STYLE
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    VERTICAL_BREAKPOINTS = [(0, "-low"), (28, "-high")]  # noqa: RUF012
    BINDINGS = [  # noqa: RUF012
        *(Binding(key.keys, key.action, key.help, show=False) for key in KEYS),
        Binding("escape", "leave", show=False),
    ]

    def __init__(
        self,
        llm: AnyEngine,
        run: Run,
        request: Request | None = None,
        *,
        changes: dict[str, Any] | None = None,
        store: bool = True,
    ) -> None:
        super().__init__()
        self.llm = llm
        self.run_shown = run
        self.at = 0
        self.alternative = 0
        # Paused, moving on at the speed of a reader, or at the newest token of a live run.
        self.mode: Literal["still", "reading", "following"] = "still"
        self.live: list[Request] = [] if request is None else [request]
        self._changes = changes or {}
        self._store = store
        self._unkept: list[Run] = []
        self._seen = -1  # how many tokens the screen shows
        self._next = 0.0  # the time of the next move while reading
        self._shares: list[Share] = []
        self._explained: dict[tuple[str, int], Explanation | str] = {}

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield TextPanel(self.go)
        with Horizontal(id="middle"):
            yield Bars(id="bars")
            yield Why(id="why")
        yield TreePanel(id="tree")
        yield Input(id="edit", select_on_focus=False)
        yield Static(id="keys")

    def on_mount(self) -> None:
        for name, word in (("text", "text"), ("bars", "alternatives"), ("why", "why"), ("tree", "runs")):
            self.query_one(f"#{name}").border_title = word
        self.query_one("#edit", Input).display = False
        self.query_one("#keys", Static).update(key_line(hints()))
        self.set_interval(_TICK, self._tick)
        for request in self.live:
            self._begin(request)
        self.go(0)

    # ── time ───────────────────────────────────────────────────────────────────────────────────────────────

    def _tick(self) -> None:
        children = self.run_shown.children
        if self.mode == "following" and children and children[-1].reason == "revised":
            self.run_shown = children[-1]  # the run was taken back, and this one continues
        count = len(self.run_shown.tokens)
        for request in [each for each in self.live if each.ended]:
            self._ended(request)
        if self.mode == "following" and count and self.at != count - 1:
            self.go(count - 1)
        elif self.mode == "reading" and time.monotonic() >= self._next:
            self._next = time.monotonic() + _READING
            if self.at + 1 < count:
                self.go(self.at + 1)
            else:
                self.mode = "following" if self._is_live else "still"
                self._draw()
        elif count != self._seen:
            self._draw() if self._shares else self.go(self.at)

    def _begin(self, request: Request) -> None:
        self.mode = "following"
        self.llm.submit(request)

    def _ended(self, request: Request) -> None:
        self.live.remove(request)
        run = request.runs[0]
        if run is self.run_shown and self.mode == "following":
            self.mode = "still"
            self.go(len(run.tokens) - 1)
        if run.error is not None:
            self._warn(str(run.error))
            if run is self.run_shown and run.above is not None:  # back to its parent
                self.run_shown = run.above
                self.go(run.fork_at or 0)
        elif self._store:
            self._unkept.append(run)
            self._keep(run)
        self._draw()

    @work(thread=True, group="keep")
    def _keep(self, run: Run) -> None:
        if keep([run]):
            self._unkept.remove(run)

    def finish(self) -> None:
        """Cancels live runs and keeps what they have. Called when the screen is closed."""
        for request in self.live:
            self.llm.engine.cancel(request, wait=True)
            if self._store and request.runs[0].tokens:
                self._unkept += request.runs
        if self._unkept:
            keep(self._unkept)

    @property
    def _is_live(self) -> bool:
        return self.run_shown.finish_reason is None

    # ── the selected token ─────────────────────────────────────────────────────────────────────────────────

    @property
    def token(self) -> Token | None:
        tokens = self.run_shown.tokens
        return tokens[self.at] if self.at < len(tokens) else None

    def go(self, at: int) -> None:
        self.at = max(0, min(at, len(self.run_shown.tokens) - 1))
        token = self.token
        self._shares = [] if token is None else shares(token)
        own = [place for place, share in enumerate(self._shares) if token and share.id == token.id]
        self.alternative = own[0] if own else 0
        self._draw()
        if token is not None and (self.run_shown.id, self.at) not in self._explained:
            self._explain(self.run_shown, self.at)

    @work(thread=True, exclusive=True, group="why")
    def _explain(self, run: Run, at: int) -> None:
        worker = get_current_worker()
        time.sleep(_STILL)
        if worker.is_cancelled:
            return
        try:
            found: Explanation | str = self.llm.explain(run, at)
        except GlassloopError as error:
            found = str(error)
        self._explained[run.id, at] = found
        self.call_from_thread(self._draw)

    def _draw(self) -> None:
        run, token = self.run_shown, self.token
        self._seen = len(run.tokens)
        self.query_one("#title", Static).update(title(run, self.at, self.mode), layout=False)
        self.query_one(TextPanel).show((list(cells_of(run, prompt_of(self.llm, run), self.at)), self.at))
        self.query_one(Bars).show((token, self._shares, self.alternative))
        self.query_one(Why).show((token, self._explained.get((run.id, self.at))))
        self.query_one(TreePanel).show(run)

    def _warn(self, text: str) -> None:
        self.notify(visible(text), severity="warning", markup=False)

    # ── keys ───────────────────────────────────────────────────────────────────────────────────────────────

    def action_move(self, by: int) -> None:
        if self.run_shown.tokens:  # until there is one, the mode stays as it is
            self.mode = "still"
            self.go(self.at + by)

    def action_end(self, side: int) -> None:
        if self.run_shown.tokens:
            self.mode = "following" if side > 0 and self._is_live else "still"
            self.go(0 if side < 0 else len(self.run_shown.tokens) - 1)

    def action_uncertain(self, by: int) -> None:
        tokens = self.run_shown.tokens
        ahead = range(self.at + 1, len(tokens)) if by > 0 else range(self.at - 1, -1, -1)
        place = next((place for place in ahead if surprise_colour(tokens[place]) is not None), None)
        if place is not None:
            self.mode = "still"
            self.go(place)

    def action_choose(self, by: int) -> None:
        if not self._shares:
            return
        self.mode = "still"
        # The last share is all other tokens together and cannot be chosen.
        self.alternative = max(0, min(self.alternative + by, len(self._shares) - 2))
        self._draw()

    def action_play(self) -> None:
        if self.mode != "still":
            self.mode = "still"
        elif self.at < len(self.run_shown.tokens) - 1:
            self.mode = "reading"
        elif self._is_live:
            self.mode = "following"
        else:
            self.go(0)
            self.mode = "reading"
        self._next = time.monotonic() + _READING
        self._draw()

    def action_fork(self) -> None:
        token = self.token
        if token is None:
            return
        chosen = self._shares[self.alternative]
        if chosen.id == token.id:
            self._warn(f"{quoted(token.piece)} is the token of this run; ↑ and ↓ select another")
        else:
            self._fork(token=chosen.id)

    def _fork(self, **how: Any) -> None:
        try:
            request = self.llm.prepare_fork(self.run_shown, self.at, **how, **self._changes)
            self.live.append(request)
            self.run_shown = request.runs[0]
            self._begin(request)
            self.go(self.at)
        except GlassloopError as error:
            self._warn(str(error))

    def action_edit(self) -> None:
        token = self.token
        if token is None:
            return
        self.mode = "still"
        box = self.query_one("#edit", Input)
        box.value = " " if token.piece.startswith(" ") else ""
        box.placeholder = f"instead of {quoted(token.piece)} and all after it"
        box.display = True
        box.focus()
        box.cursor_position = len(box.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.action_leave()
        if event.value:
            self._fork(text=event.value)

    def action_leave(self) -> None:
        box = self.query_one("#edit", Input)
        box.display = False
        self.set_focus(None)

    def action_run(self, by: int) -> None:
        runs = list(self.run_shown.tree())
        self.run_shown = runs[(runs.index(self.run_shown) + by) % len(runs)]
        self.mode = "still"
        self.go(self.at)

    def action_to_fork(self) -> None:
        if self.run_shown.fork_at is None:
            self._warn("this run is not a fork")
        else:
            self.mode = "still"
            self.go(self.run_shown.fork_at)

    def action_stop(self) -> None:
        for request in self.live:
            if request.runs[0] is self.run_shown:
                self.llm.cancel(request)

    def action_help(self) -> None:
        self.push_screen(Help())
