"""The app of `watch` for a run that was generated token by token: its text, the alternatives to a token
and the reasons for it, and forks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.widgets import Input, Static

from glassloop.cli.show import surprise_colour
from glassloop.cli.terminal import quoted
from glassloop.cli.watch.keys import KEYS
from glassloop.cli.watch.layout import cells_of
from glassloop.cli.watch.panels import Bars, Help, TextPanel, TreePanel, Why, prompt_of, title
from glassloop.cli.watch.player import Player, bindings
from glassloop.errors import GlassloopError
from glassloop.record.shares import Share, shares

if TYPE_CHECKING:
    from glassloop.cli.loading import AnyEngine
    from glassloop.engine.request import Request
    from glassloop.record.run import Run
    from glassloop.record.token import Token


class WatchApp(Player):
    """Shows a run, follows it while it is generated, and forks it."""

    BINDINGS = [*bindings(KEYS), Binding("escape", "leave", show=False)]  # noqa: RUF012

    def __init__(
        self,
        llm: AnyEngine,
        run: Run,
        request: Request | None = None,
        *,
        changes: dict[str, Any] | None = None,
        store: bool = True,
    ) -> None:
        super().__init__(llm, run, request, store)
        self.alternative = 0
        self._changes = changes or {}
        self._shares: list[Share] = []

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
        self.begin(KEYS)

    @property
    def count(self) -> int:
        return len(self.run_shown.tokens)

    def _tick(self) -> None:
        children = self.run_shown.children
        if self.mode == "following" and children and children[-1].reason == "revised":
            self.run_shown = children[-1]  # the run was taken back, and this one continues
        super()._tick()

    def ended(self, request: Request) -> None:
        super().ended(request)
        run = request.runs[0]
        if run.error is not None and run is self.run_shown and run.above is not None:  # back to its parent
            self.run_shown = run.above
            self.go(run.fork_at or 0)

    # ── the selected token ─────────────────────────────────────────────────────────────────────────────────

    @property
    def token(self) -> Token | None:
        tokens = self.run_shown.tokens
        return tokens[self.at] if self.at < len(tokens) else None

    def go(self, at: int) -> None:
        self.at = max(0, min(at, len(self.run_shown.tokens) - 1))
        token = self.token
        self._shares = [] if token is None else shares(token)
        places = [place for place, share in enumerate(self._shares) if token and share.id == token.id]
        self.alternative = places[0] if places else 0
        self.draw()
        if token is not None:
            self.ask_why(self.at)

    def paint(self) -> None:
        run, token = self.run_shown, self.token
        self._seen = len(run.tokens)
        self.query_one("#title", Static).update(title(run, self.at, self.mode), layout=False)
        self.query_one(TextPanel).show((list(cells_of(run, prompt_of(self.llm, run), self.at)), self.at))
        self.query_one(Bars).show((token, self._shares, self.alternative))
        self.query_one(Why).show((token, self.why(self.at)))
        self.query_one(TreePanel).show(run)

    # ── keys ───────────────────────────────────────────────────────────────────────────────────────────────

    def action_uncertain(self, by: int) -> None:
        tokens = self.run_shown.tokens
        ahead = range(self.at + 1, len(tokens)) if by > 0 else range(self.at - 1, -1, -1)
        place = next((place for place in ahead if surprise_colour(tokens[place]) is not None), None)
        if place is not None:
            self.pause_at(place)

    def action_choose(self, by: int) -> None:
        if not self._shares:
            return
        self.mode = "still"
        # The last share is all other tokens together and cannot be chosen.
        self.alternative = max(0, min(self.alternative + by, len(self._shares) - 2))
        self.draw()

    def action_fork(self) -> None:
        token = self.token
        if token is None:
            return
        chosen = self._shares[self.alternative]
        if chosen.id == token.id:
            self.warn(f"{quoted(token.piece)} is the token of this run; ↑ and ↓ select another")
        else:
            self._fork(token=chosen.id)

    def _fork(self, **how: Any) -> None:
        try:
            request = self.llm.prepare_fork(self.run_shown, self.at, **how, **self._changes)
            self.live.append(request)
            self.run_shown = request.runs[0]
            self.submit(request)
            self.go(self.at)
        except GlassloopError as error:
            self.warn(str(error))

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
        self.pause_at(self.at)

    def action_to_fork(self) -> None:
        if self.run_shown.fork_at is None:
            self.warn("this run is not a fork")
        else:
            self.pause_at(self.run_shown.fork_at)

    def action_help(self) -> None:
        self.push_screen(Help())
