"""The panels of `watch`. Each draws what the app gives it and computes nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import exp, inf, isnan
from typing import TYPE_CHECKING, Generic, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.events import Click
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Static

from glassloop.cli.terminal import percent, quoted, visible
from glassloop.cli.tokens import entropy_text, luck_text, surprise_text
from glassloop.cli.watch.keys import KEYS, Key
from glassloop.cli.watch.layout import ScreenCell, wrap
from glassloop.decode.explain import Explanation
from glassloop.record.messages import text_of
from glassloop.record.run import Run
from glassloop.record.run_tree import run_line
from glassloop.record.shares import Share
from glassloop.record.token import Token

if TYPE_CHECKING:
    from glassloop.cli.loading import AnyEngine

_OWN, _GAIN, _GHOST = "color(73)", "color(115)", "color(240)"
_DIM = "dim"
Shown = TypeVar("Shown")
Line = TypeVar("Line")


def title(run: Run, at: int, mode: str) -> Text:
    """Returns one line about the run and the place in it."""
    state = {"following": "▶ live", "playing": "▶ reading"}.get(mode, "")
    ended = f"ended by {run.finish_reason}" if run.finish_reason else "running"
    place = f"token {at} · {len(run.tokens)} tokens"
    forked = "" if run.fork_at is None else f"forked at {run.fork_at}"
    parts = (place, state, f"run {run.id[:8]}", forked, f"seed {run.seed}", ended, run.model)
    return Text(visible(" · ".join(part for part in parts if part), newlines=False), no_wrap=True)


def prompt_of(llm: AnyEngine, run: Run) -> str:
    """Returns the text before the tokens: the prompt, or a chat with the role of each message."""
    if run.messages is not None:
        return "".join(f"{each['role']}: {text_of(each)}\n" for each in run.messages) + "assistant: "
    return run.prompt if run.prompt is not None else llm.tokenizer.decode(run.prompt_ids)


def key_line(hints: list[tuple[str, str]]) -> Text:
    """Returns the line at the bottom, which names the keys."""
    line = Text(no_wrap=True)
    for keys, word in hints:
        line.append(f" {keys}", "bold").append(f" {word} ", "dim")
    return line


class Panel(Widget, Generic[Shown]):
    """A part of the screen that draws what it was last given."""

    shown: Shown | None = None

    def show(self, shown: Shown) -> None:
        self.shown = shown
        self.refresh()

    def around(self, place: int, lines: list[Line]) -> list[Line]:
        """Returns as many lines as there is room for, with the one at `place` near the middle."""
        height = self.content_size.height
        first = max(0, min(place - height // 2, len(lines) - height))
        return lines[first : first + height]


class TextPanel(Panel[tuple[Iterable[ScreenCell], int]]):
    """The characters of a text, each with the number of its token, scrolled so that the token with a given
    number is visible."""

    def __init__(self, select: Callable[[int], None]) -> None:
        super().__init__(id="text")
        self._select = select
        self._lines: list[list[ScreenCell]] = []

    def render(self) -> RenderableType:
        if self.shown is None or self.content_size.width < 2:
            return Text()
        cells, at = self.shown
        lines = wrap(cells, self.content_size.width)
        here = next(
            (place for place, line in enumerate(lines) if any(cell.token == at for cell in line)),
            len(lines) - 1,
        )
        self._lines = self.around(here, lines)
        return Text("\n").join([Text.assemble(*_styled(line)) for line in self._lines])

    def on_click(self, event: Click) -> None:
        place = event.get_content_offset(self)
        if place is None or place.y >= len(self._lines):
            return
        column = 0
        for cell in self._lines[place.y]:
            column += cell.width
            if column > place.x:
                self._select(cell.token)
                break


def _styled(line: list[ScreenCell]) -> list[tuple[str, str]]:
    """Returns the text of a line in parts with one style each."""
    parts: list[tuple[str, str]] = []
    for cell in line:
        if parts and parts[-1][1] == cell.style:
            parts[-1] = (parts[-1][0] + cell.text, cell.style)
        else:
            parts.append((cell.text, cell.style))
    return parts


class Bars(Panel[tuple[Token | None, list[Share], int]]):
    """The alternatives to a token, one of them selected: bars for their probability after the stages, and
    behind these, as a ghost, the model's own."""

    def render(self) -> RenderableType:
        width = self.content_size.width
        token, shares, selected = self.shown or (None, [], 0)
        if token is None or not shares or width < 20:
            return Text("no token yet", _DIM)
        names = ["all others" if share.text is None else quoted(share.text) for share in shares]
        name_width = min(max(map(cell_len, names)), max(8, width // 3))
        lines = []
        for place, share in self.around(selected, list(enumerate(shares))):
            came, is_selected = share.id == token.id, place == selected
            style = "bold" if came else _DIM if share.id is None else ""
            name = names[place]
            if cell_len(name) > name_width:
                name = set_cell_size(name, name_width - 1).rstrip() + "…"
            line = Text.assemble(
                ("▸" if is_selected else "•" if came else " ", "bold"),
                " ",
                (set_cell_size(name, name_width), f"{style} reverse" if is_selected else style),
                " ",
                *bar(*_lengths(share), width - name_width - 12),
                # For a token that a stage removed, the model's own probability.
                (f"{_left(share):>9}", _DIM if share.logprob == -inf else style),
                no_wrap=True,
            )
            lines.append(line)
        return Text("\n").join(lines)


def _lengths(share: Share) -> tuple[float, float]:
    """Returns the probability after the stages and the model's own. Of another engine only one is known."""
    raw = 0.0 if isnan(share.raw_logprob) else exp(share.raw_logprob)
    return raw if isnan(share.logprob) else exp(share.logprob), raw


def _left(share: Share) -> str:
    if isnan(share.logprob):
        return percent(share.raw_logprob)
    return f"({percent(share.raw_logprob)})" if share.logprob == -inf else percent(share.logprob)


def bar(share: float, ghost: float, width: int) -> list[tuple[str, str]]:
    """Returns the parts of a bar: the share, lighter where the stages added to it, and then the ghost if that
    is longer."""
    full, faint = round(share * width), round(ghost * width)
    parts = [("█" * min(full, faint), _OWN), ("█" * (full - faint), _GAIN), ("░" * (faint - full), _GHOST)]
    thin = "▏" if not full and share > 0 and not faint else ""
    return [*parts, (thin, _OWN), (" " * (width - max(full, faint, len(thin))), "")]


class Why(Panel[tuple[Token | None, Explanation | str | None]]):
    """The recorded numbers of a token, and its explanation (or an error) once there is one."""

    def render(self) -> RenderableType:
        token, explained = self.shown or (None, None)
        if token is None:
            return Text()
        facts = [
            f"rank {token.rank or '?'}",
            f"surprise {surprise_text(token)}",
            f"entropy {entropy_text(token)}",
            *([] if token.source == "beam" else [f"luck {luck_text(token)}"]),
            token.source,
        ]
        line = Text(" · ".join(facts), _DIM)
        if explained is None:
            return Group(line, Text("…", _DIM))
        if isinstance(explained, str):
            return Group(line, Text(visible(explained, newlines=False), "color(208)"))
        sentence = Text(visible(explained.sentence, newlines=False))
        stages = [stages_table(explained)] if explained.stages else []
        return Group(sentence, Text(), *stages, line)


def stages_table(explained: Explanation) -> Table:
    table = Table(box=None, pad_edge=False, header_style=_DIM, padding=(0, 2, 0, 0))
    table.add_column("stage", no_wrap=True)
    table.add_column("left", justify="right", no_wrap=True)
    table.add_column("mass kept", justify="right", no_wrap=True)
    for report in explained.stages:
        table.add_row(report.name, f"{report.survivors:,}", f"{100 * report.mass_kept:.1f} %")
    return table


class TreePanel(Panel[Run]):
    """All runs of a run's tree, one line each."""

    def render(self) -> RenderableType:
        if self.shown is None:
            return Text()
        drawn = list(self.shown.tree().drawn())
        here = next(place for place, (_, run) in enumerate(drawn) if run is self.shown)
        lines = []
        for branch, run in self.around(here, drawn):
            line = Text(branch, _DIM).append(
                visible(run_line(run), newlines=False), "bold" if run is self.shown else ""
            )
            line.truncate(max(1, self.content_size.width), overflow="ellipsis")
            lines.append(line)
        return Text("\n").join(lines)


class Help(ModalScreen[None]):
    """The list of keys, with notes under it. Any key or click closes it."""

    NOTES = ("bars: probability after the stages; ░ the model's own", "underlined: a token that was forced")

    def __init__(self, keys: tuple[Key, ...] = KEYS, notes: tuple[str, ...] = NOTES) -> None:
        super().__init__()
        self._keys, self._notes = keys, notes

    def compose(self) -> ComposeResult:
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for key in self._keys:
            table.add_row(Text(key.shown, "bold"), key.help)
        table.add_row()
        for note in (*self._notes, "press any key to close"):
            table.add_row("", Text(note, "dim"))
        box = Static(table, id="help")
        box.border_title = "keys"
        yield box

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        self.dismiss()

    def on_click(self, event: Click) -> None:
        self.dismiss()
