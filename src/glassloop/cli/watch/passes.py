"""`watch` for a text that was written by diffusion: a scrubber over its passes, live or recorded.

A moment of the run is a pass; the place that is shown is one of the block that the pass worked on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.events import Click
from textual.widgets import Static

from glassloop.cli.diffusion import MASKED
from glassloop.cli.terminal import quoted, visible
from glassloop.cli.watch.keys import PASS_KEYS
from glassloop.cli.watch.layout import frame_cells
from glassloop.cli.watch.panels import Help, Panel, TextPanel, bar, prompt_of, stages_table
from glassloop.cli.watch.player import Player, bindings
from glassloop.diffuse.frames import Frame, FrameCell, Frames

if TYPE_CHECKING:
    from glassloop.api.llm import LLM
    from glassloop.decode.explain import Explanation
    from glassloop.diffuse.write import DiffusionRequest
    from glassloop.record.passes import PassRecord
    from glassloop.record.run import Run

_NOTES = (
    "░ a mask; bold green: filled by this pass; red: taken back before it",
    "bars: the highest probability that the model gave any token there",
)


class WatchPasses(Player):
    """Shows a text after each of its passes, and follows it while it is written."""

    BINDINGS = [*bindings(PASS_KEYS)]  # noqa: RUF012
    pace = 0.25
    llm: LLM

    def __init__(
        self, llm: LLM, run: Run, request: DiffusionRequest | None = None, *, store: bool = True
    ) -> None:
        super().__init__(llm, run, request, store)
        self.place = 0  # in the answer
        self._frames = self._maker(run)
        self._frame: Frame | None = None

    def _maker(self, run: Run) -> Frames:
        return Frames(run, self.llm.piece, self.llm.tokenizer.eos_ids)

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield TextPanel(self._select)
        yield Scrubber(self.pause_at)
        with Horizontal(id="middle"):
            yield PassPlaces(id="places")
            yield WhyPlace(id="why")
        yield Static(id="keys")

    def on_mount(self) -> None:
        for name, word in (("text", "text"), ("places", "places of the block"), ("why", "why")):
            self.query_one(f"#{name}").border_title = word
        self.begin(PASS_KEYS)

    @property
    def _passes(self) -> list[PassRecord]:
        return self.run_shown.passes

    @property
    def count(self) -> int:
        return len(self._passes)

    # ── the pass and the place ─────────────────────────────────────────────────────────────────────────────

    def go(self, at: int, place: int | None = None) -> None:
        """Shows a pass; of its block a place, by default the first one that the pass has changed."""
        self.at = max(0, min(at, self.count - 1))
        self._frame = self._frames.at(self.at) if self.count else None
        if self._frame is not None:
            first, cells = self._frame.first, self._frame.cells
            changed = [number for number, cell in enumerate(cells, first) if cell.changed]
            wanted = (changed or [first])[0] if place is None else place
            self.place = max(first, min(wanted, first + len(cells) - 1))
            self.ask_why(self.place, self._asked)
        self.draw()

    @property
    def _cell(self) -> FrameCell:
        assert self._frame is not None
        return self._frame.cells[self.place - self._frame.first]

    @property
    def _asked(self) -> int:
        """The pass that is explained: the one that is shown or, where the place was known before it, the one
        that filled the place."""
        filled_by = self._cell.filled_by
        return self.at if filled_by is None else filled_by

    def paint(self) -> None:
        run, frame = self.run_shown, self._frame
        self._seen = len(run.passes)
        self.query_one("#title", Static).update(_title(run, self.at, frame, self.mode), layout=False)
        self.query_one(Scrubber).show((run.passes[: self._seen], self.at))
        if frame is None:
            return
        prompt = prompt_of(self.llm, run)
        self.query_one(TextPanel).show((list(frame_cells(run, prompt, frame, self.place)), self.place))
        self.query_one(PassPlaces).show((frame, self.place))
        self.query_one(WhyPlace).show((self._cell, self.why(self.place, self._asked)))

    # ── keys ───────────────────────────────────────────────────────────────────────────────────────────────

    def _select(self, place: int) -> None:
        if self._frame is not None and place >= self._frame.first:
            self.mode = "still"
            self.go(self.at, place)

    def action_place(self, by: int) -> None:
        if self._frame is not None:
            self.mode = "still"
            self.go(self.at, self.place + by)

    def action_block(self, by: int) -> None:
        passes = self._passes
        starts = [at for at, each in enumerate(passes) if not at or each.first != passes[at - 1].first]
        ahead = [at for at in starts if at > self.at] if by > 0 else [at for at in starts if at < self.at]
        if ahead:
            self.pause_at(ahead[0] if by > 0 else ahead[-1])

    def action_taken_back(self, by: int) -> None:
        ahead = [each.number for each in self._passes[self.at + 1 :] if each.unfilled]
        if ahead:
            self.pause_at(ahead[0])
        else:
            self.notify("nothing is taken back in the passes after this one", severity="warning")

    def action_run(self, by: int) -> None:
        runs = self.run_shown.samples or [self.run_shown]
        self.run_shown = runs[(runs.index(self.run_shown) + by) % len(runs)]
        self._frames = self._maker(self.run_shown)
        self.go(self.at)

    def action_help(self) -> None:
        self.push_screen(Help(PASS_KEYS, _NOTES))


# ── panels ─────────────────────────────────────────────────────────────────────────────────────────────────


def _title(run: Run, at: int, frame: Frame | None, mode: str) -> Text:
    """Returns one line about the run, the pass and its block."""
    state = {"following": "▶ live", "playing": "▶ playing"}.get(mode, "")
    ended = f"ended by {run.finish_reason}" if run.finish_reason else "running"
    place = "no pass yet"
    filled = ""
    if frame is not None:
        place = f"pass {at} · {len(run.passes)} passes"
        filled = f"{sum(cell.text is not None for cell in frame.cells)} of {len(frame.cells)} places known"
    parts = (place, state, filled, f"run {run.id[:8]}", f"seed {run.seed}", ended, run.model)
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


class PassPlaces(Panel[tuple[Frame, int]]):
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


def _certainty(cell: FrameCell, width: int) -> list[tuple[str, str]]:
    """Returns the confidence of a place as a bar, or what was taken back there before this pass."""
    if cell.changed and cell.taken_back is not None:
        instead = "" if cell.text is None else "was "
        return [(f"{instead}{visible(quoted(cell.taken_back), newlines=False)}: {cell.reason}", "red")]
    if cell.confidence is None:
        return []
    room = max(1, width - 9)
    return [*bar(cell.confidence, cell.confidence, room), (f"{100 * cell.confidence:>7.1f} %", "")]


class WhyPlace(Panel[tuple[FrameCell, "Explanation | str | None"]]):
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
