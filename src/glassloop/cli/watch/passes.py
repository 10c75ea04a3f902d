"""`watch` for a text that was written by diffusion: a scrubber over its passes, live or recorded.

The state of the app is the run, the pass and the place that are shown, and the mode. As in `app`, the engine
fills the run in a thread of its own, a timer reads how far it has come, and explanations are computed in a
worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.events import Click
from textual.widgets import Static
from textual.worker import get_current_worker

from glassloop.cli.diffusion import MASKED
from glassloop.cli.kept import keep
from glassloop.cli.terminal import quoted, visible
from glassloop.cli.watch.keys import PASS_KEYS, hints
from glassloop.cli.watch.layout import frame_cells
from glassloop.cli.watch.panels import Help, Panel, TextPanel, bar, key_line, prompt_of, stages_table
from glassloop.cli.watch.style import STYLE
from glassloop.diffuse.frames import Cell, Frame, Frames
from glassloop.errors import GlassloopError

if TYPE_CHECKING:
    from glassloop.decode.explain import Explanation
    from glassloop.diffuse.write import DiffusionRequest
    from glassloop.engine.llm import LLM
    from glassloop.trace.passes import PassRecord
    from glassloop.trace.run import Run

_TICK = 0.1  # seconds
_PLAYING = 0.25  # seconds per pass when a recorded run is played
_STILL = 0.15  # seconds that a place must be selected before it is explained
_NOTES = (
    "░ a mask; bold green: filled by this pass; red: taken back before it",
    "bars: the highest probability that the model gave any token there",
)


class WatchPasses(App[None]):
    """Shows a text after each of its passes, and follows it while it is written."""

    CSS = STYLE
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    VERTICAL_BREAKPOINTS = [(0, "-low"), (28, "-high")]  # noqa: RUF012
    BINDINGS = [  # noqa: RUF012
        *(Binding(key.keys, key.action, key.help, show=False) for key in PASS_KEYS),
    ]

    def __init__(
        self, llm: LLM, run: Run, request: DiffusionRequest | None = None, *, store: bool = True
    ) -> None:
        super().__init__()
        self.llm = llm
        self.run_shown = run
        self.at = 0  # the pass
        self.place = 0  # in the answer
        # Paused, moving on at the speed of a reader, or at the newest pass of a live run.
        self.mode: Literal["still", "playing", "following"] = "still"
        self._live = request
        self._store = store
        self._unkept: list[Run] = []
        self._seen = -1  # how many passes the screen shows
        self._next = 0.0  # the time of the next move while playing
        self._frames = self._maker(run)
        self._frame: Frame | None = None
        self._explained: dict[tuple[str, int, int], Explanation | str] = {}

    def _maker(self, run: Run) -> Frames:
        return Frames(run, self.llm.piece, self.llm.tokenizer.eos_ids)

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield TextPanel(self._select)
        yield Scrubber(self._scrub)
        with Horizontal(id="middle"):
            yield Places(id="places")
            yield WhyPlace(id="why")
        yield Static(id="keys")

    def on_mount(self) -> None:
        for name, word in (("text", "text"), ("places", "places of the block"), ("why", "why")):
            self.query_one(f"#{name}").border_title = word
        self.query_one("#keys", Static).update(key_line(hints(PASS_KEYS)))
        self.set_interval(_TICK, self._tick)
        if self._live is not None:
            self.mode = "following"
            self.llm.submit(self._live)
        self.go(0)

    # ── time ───────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _passes(self) -> list[PassRecord]:
        return self.run_shown.passes

    @property
    def _is_live(self) -> bool:
        return self.run_shown.finish_reason is None

    def _tick(self) -> None:
        count = len(self._passes)
        if self._live is not None and self._live.ended:
            self._ended(self._live)
        if self.mode == "following" and count and self.at != count - 1:
            self.go(count - 1)
        elif self.mode == "playing" and time.monotonic() >= self._next:
            self._next = time.monotonic() + _PLAYING
            if self.at + 1 < count:
                self.go(self.at + 1)
            else:
                self.mode = "following" if self._is_live else "still"
                self._draw()
        elif count != self._seen:
            self._draw() if self._frame is not None else self.go(self.at)

    def _ended(self, request: DiffusionRequest) -> None:
        self._live = None
        if self.mode == "following":
            self.mode = "still"
            self.go(len(self._passes) - 1)
        error = next((run.error for run in request.runs if run.error is not None), None)
        if error is not None:
            self.notify(visible(str(error)), severity="warning", markup=False)
        elif self._store:
            self._unkept = request.runs
            self._keep()
        self._draw()

    @work(thread=True, group="keep")
    def _keep(self) -> None:
        if keep(self._unkept):
            self._unkept = []

    def finish(self) -> None:
        """Cancels a live run and keeps what it has. Called when the screen is closed."""
        if self._live is not None:
            self.llm.engine.cancel(self._live, wait=True)
            if self._store:
                self._unkept = [run for run in self._live.runs if run.passes and run.error is None]
        if self._unkept:
            keep(self._unkept)

    # ── the pass and the place ─────────────────────────────────────────────────────────────────────────────

    def go(self, at: int, place: int | None = None) -> None:
        """Shows a pass; of its block a place, by default the first one that the pass has changed."""
        count = len(self._passes)
        self.at = max(0, min(at, count - 1))
        self._frame = self._frames.at(self.at) if count else None
        if self._frame is not None:
            first, cells = self._frame.first, self._frame.cells
            changed = [number for number, cell in enumerate(cells, first) if cell.changed]
            wanted = (changed or [first])[0] if place is None else place
            self.place = max(first, min(wanted, first + len(cells) - 1))
            if self._question not in self._explained:
                self._explain(self.run_shown, *self._question[1:])
        self._draw()

    @property
    def _cell(self) -> Cell:
        assert self._frame is not None
        return self._frame.cells[self.place - self._frame.first]

    @property
    def _question(self) -> tuple[str, int, int]:
        """What is explained: the place in the pass that is shown, or, if it was known before, in the one that
        filled it."""
        known = self._cell.filled_by
        return self.run_shown.id, self.place, self.at if known is None else known

    @work(thread=True, exclusive=True, group="why")
    def _explain(self, run: Run, place: int, number: int) -> None:
        worker = get_current_worker()
        time.sleep(_STILL)
        if worker.is_cancelled:
            return
        try:
            found: Explanation | str = self.llm.explain(run, place, number=number)
        except GlassloopError as error:
            found = str(error)
        self._explained[run.id, place, number] = found
        self.call_from_thread(self._draw)

    def _draw(self) -> None:
        run, frame = self.run_shown, self._frame
        self._seen = len(run.passes)
        self.query_one("#title", Static).update(_title(run, self.at, frame, self.mode), layout=False)
        self.query_one(Scrubber).show((run.passes[: self._seen], self.at))
        if frame is None:
            return
        prompt = prompt_of(self.llm, run)
        self.query_one(TextPanel).show((list(frame_cells(run, prompt, frame, self.place)), self.place))
        self.query_one(Places).show((frame, self.place))
        self.query_one(WhyPlace).show((self._cell, self._explained.get(self._question)))

    # ── keys ───────────────────────────────────────────────────────────────────────────────────────────────

    def _scrub(self, at: int) -> None:
        self.mode = "still"
        self.go(at)

    def _select(self, place: int) -> None:
        if self._frame is not None and place >= self._frame.first:
            self.mode = "still"
            self.go(self.at, place)

    def action_move(self, by: int) -> None:
        if self._passes:
            self._scrub(self.at + by)

    def action_place(self, by: int) -> None:
        if self._frame is not None:
            self.mode = "still"
            self.go(self.at, self.place + by)

    def action_end(self, side: int) -> None:
        if self._passes:
            self._scrub(0 if side < 0 else len(self._passes) - 1)
            if side > 0 and self._is_live:
                self.mode = "following"
                self._draw()

    def action_block(self, by: int) -> None:
        passes = self._passes
        starts = [at for at, each in enumerate(passes) if not at or each.first != passes[at - 1].first]
        ahead = [at for at in starts if at > self.at] if by > 0 else [at for at in starts if at < self.at]
        if ahead:
            self._scrub(ahead[0] if by > 0 else ahead[-1])

    def action_taken_back(self, by: int) -> None:
        ahead = [each.number for each in self._passes[self.at + 1 :] if each.unfilled]
        if ahead:
            self._scrub(ahead[0])
        else:
            self.notify("nothing is taken back in the passes after this one", severity="warning")

    def action_play(self) -> None:
        if self.mode != "still":
            self.mode = "still"
        elif self.at < len(self._passes) - 1:
            self.mode = "playing"
        elif self._is_live:
            self.mode = "following"
        else:
            self.go(0)
            self.mode = "playing"
        self._next = time.monotonic() + _PLAYING
        self._draw()

    def action_run(self, by: int) -> None:
        runs = self.run_shown.samples or [self.run_shown]
        self.run_shown = runs[(runs.index(self.run_shown) + by) % len(runs)]
        self._frames = self._maker(self.run_shown)
        self.go(min(self.at, len(self._passes) - 1))

    def action_stop(self) -> None:
        if self._live is not None:
            self.llm.cancel(self._live)

    def action_help(self) -> None:
        self.push_screen(Help(PASS_KEYS, _NOTES))


# ── panels ─────────────────────────────────────────────────────────────────────────────────────────────────


def _title(run: Run, at: int, frame: Frame | None, mode: str) -> Text:
    """Returns one line about the run, the pass and its block."""
    state = {"following": "▶ live", "playing": "▶ playing"}.get(mode, "")
    ended = f"ended by {run.finish_reason}" if run.finish_reason else "running"
    place = "no pass yet"
    known = ""
    if frame is not None:
        place = f"pass {at} · {len(run.passes)} passes"
        known = f"{sum(cell.text is not None for cell in frame.cells)} of {len(frame.cells)} places known"
    parts = (place, state, known, f"run {run.id[:8]}", f"seed {run.seed}", ended, run.model)
    return Text(visible(" · ".join(part for part in parts if part), newlines=False), no_wrap=True)


class Scrubber(Panel[tuple["list[PassRecord]", int]]):
    """A line with a mark for the pass that is shown, `╂` where a block begins, and `×` where tokens were
    taken back. A click goes to a pass."""

    def __init__(self, select: Callable[[int], None]) -> None:
        super().__init__(id="scrubber")
        self._select = select

    def render(self) -> RenderableType:
        width = self.content_size.width
        if self.shown is None or width < 3 or not self.shown[0]:
            return Text()
        passes, at = self.shown
        line = ["─"] * width
        for each in passes:
            if each.unfilled:
                line[self._column(each.number)] = "×"
        for before, each in zip((None, *passes), passes, strict=False):
            if before is None or before.first != each.first:
                line[self._column(each.number)] = "╂"
        here = self._column(at)
        return Text.assemble(
            ("".join(line[:here]), "color(73)"), ("●", "bold"), ("".join(line[here + 1 :]), "dim")
        )

    def _column(self, number: int) -> int:
        assert self.shown is not None
        last = max(1, len(self.shown[0]) - 1)
        return min(number * (self.content_size.width - 1) // last, self.content_size.width - 1)

    def on_click(self, event: Click) -> None:
        place = event.get_content_offset(self)
        if place is None or self.shown is None or not self.shown[0]:
            return
        last = len(self.shown[0]) - 1
        self._select(round(place.x * last / max(1, self.content_size.width - 1)))


class Places(Panel[tuple[Frame, int]]):
    """The places of the block after a pass, one line each: the token, the confidence with which it was
    filled, and what had been taken back."""

    def render(self) -> RenderableType:
        width = self.content_size.width
        if self.shown is None or width < 24:
            return Text("no pass yet", "dim")
        frame, selected = self.shown
        names = [MASKED if cell.text is None else quoted(cell.text) for cell in frame.cells]
        name_width = min(max(map(cell_len, names)), max(8, width // 3))
        lines = []
        for place, cell in self.around(selected - frame.first, list(enumerate(frame.cells))):
            is_selected = place + frame.first == selected
            style = "bold green" if cell.changed and cell.text is not None else "red" if cell.changed else ""
            name = names[place]
            if cell_len(name) > name_width:
                name = set_cell_size(name, name_width - 1).rstrip() + "…"
            line = Text.assemble(
                ("▸" if is_selected else " ", "bold"),
                f"{place + frame.first:>4} ",
                (set_cell_size(name, name_width), f"{style} reverse" if is_selected else style),
                " ",
                *_certainty(cell, width - name_width - 7),
                no_wrap=True,
            )
            line.truncate(width)
            lines.append(line)
        return Text("\n").join(lines)


def _certainty(cell: Cell, width: int) -> list[tuple[str, str]]:
    """Returns the confidence of a place as a bar, or what was taken back there before this pass."""
    if cell.changed and cell.taken_back is not None:
        instead = "" if cell.text is None else "was "
        return [(f"{instead}{visible(quoted(cell.taken_back), newlines=False)}: {cell.reason}", "red")]
    if cell.confidence is None:
        return []
    room = max(1, width - 9)
    return [*bar(cell.confidence, cell.confidence, room), (f"{100 * cell.confidence:>7.1f} %", "")]


class WhyPlace(Panel[tuple[Cell, "Explanation | str | None"]]):
    """The explanation of a place in a pass, once there is one, and the recorded numbers."""

    def render(self) -> RenderableType:
        if self.shown is None:
            return Text()
        cell, explained = self.shown
        facts = Text("masked", "dim")
        if cell.text is not None:
            facts = Text(
                f"filled by pass {cell.filled_by} · confidence {cell.confidence:.3f} ·"
                f" entropy {cell.entropy:.2f} nats",
                "dim",
            )
        if explained is None:
            return Group(facts, Text("…", "dim"))
        if isinstance(explained, str):
            return Group(facts, Text(visible(explained, newlines=False), "color(208)"))
        sentence = Text(visible(explained.sentence, newlines=False))
        stages = [stages_table(explained)] if explained.stages else []
        return Group(sentence, Text(), *stages, facts)
