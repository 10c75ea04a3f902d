"""The panels of `watch`. Each draws what the app gives it and computes nothing itself."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf, log

from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.events import Click
from textual.widget import Widget

from glassloop.cli.terminal import percent, quoted, visible
from glassloop.cli.watch.layout import Cell, cells_of, wrap
from glassloop.decode.explain import Explanation
from glassloop.trace.run import Run
from glassloop.trace.run_tree import run_line
from glassloop.trace.shares import Share
from glassloop.trace.token import Token

_OWN, _GAIN, _GHOST = "color(73)", "color(115)", "color(240)"
_DIM = "dim"


def title(run: Run, at: int, mode: str) -> Text:
    """Returns one line about the run and the place in it."""
    state = {"following": "▶ live", "reading": "▶ reading"}.get(mode, "")
    ended = f"ended by {run.finish_reason}" if run.finish_reason else "running"
    place = f"token {at} of {len(run.tokens)}"
    parts = (place, state, f"run {run.id[:8]}", f"seed {run.seed}", ended, run.model)
    return Text(visible(" · ".join(part for part in parts if part), newlines=False), no_wrap=True)


class TextPanel(Widget):
    """The text of the run, scrolled so that the current token is visible."""

    def __init__(self, chosen: Callable[[int], None]) -> None:
        super().__init__(id="text")
        self._chosen = chosen
        self._run: Run | None = None
        self._prompt, self._at = "", 0
        self._lines: list[list[Cell]] = []

    def show(self, run: Run, prompt: str, at: int) -> None:
        self._run, self._prompt, self._at = run, prompt, at
        self.refresh()

    def render(self) -> RenderableType:
        if self._run is None or self.content_size.width < 2:
            return Text()
        height = self.content_size.height
        lines = wrap(cells_of(self._run, self._prompt, self._at), self.content_size.width)
        here = next(
            (place for place, line in enumerate(lines) if any(cell.token == self._at for cell in line)),
            len(lines) - 1,
        )
        first = max(0, min(here - height // 2, len(lines) - height))
        self._lines = lines[first : first + height]
        return Text("\n").join([Text.assemble(*_styled(line)) for line in self._lines])

    def on_click(self, event: Click) -> None:
        place = event.get_content_offset(self)
        if place is None or place.y >= len(self._lines):
            return
        column = 0
        for cell in self._lines[place.y]:
            column += cell.width
            if column > place.x:
                self._chosen(cell.token)
                break


def _styled(line: list[Cell]) -> list[tuple[str, str]]:
    """Returns the text of a line in parts with one style each."""
    made: list[tuple[str, str]] = []
    for cell in line:
        if made and made[-1][1] == cell.style:
            made[-1] = (made[-1][0] + cell.text, cell.style)
        else:
            made.append((cell.text, cell.style))
    return made


class Bars(Widget):
    """The alternatives: their probability after the stages, and behind it, as a ghost, the model's own."""

    def __init__(self) -> None:
        super().__init__(id="bars")
        self._shares: list[Share] = []
        self._token: Token | None = None
        self._chosen = 0

    def show(self, token: Token | None, shares: list[Share], chosen: int) -> None:
        self._token, self._shares, self._chosen = token, shares, chosen
        self.refresh()

    def render(self) -> RenderableType:
        width, height = self.content_size
        if self._token is None or not self._shares or width < 20:
            return Text("no token yet", _DIM)
        names = ["all others" if share.text is None else quoted(share.text) for share in self._shares]
        longest = max(map(cell_len, names))
        name_width = min(longest, max(8, width // 3))
        bar_width = width - name_width - 12
        first = max(0, min(self._chosen - height // 2, len(names) - height))
        lines = [
            self._line(place, names[place], name_width, bar_width)
            for place in range(first, min(first + height, len(names)))
        ]
        return Text("\n").join(lines)

    def _line(self, place: int, name: str, name_width: int, bar_width: int) -> Text:
        share = self._shares[place]
        assert self._token is not None
        came = share.id == self._token.id
        style = "bold" if came else _DIM if share.id is None else ""
        if cell_len(name) > name_width:
            name = set_cell_size(name, name_width - 1).rstrip() + "…"
        return Text.assemble(
            ("▸" if place == self._chosen else "•" if came else " ", "bold"),
            " ",
            (set_cell_size(name, name_width), f"{style} reverse" if place == self._chosen else style),
            " ",
            *bar(exp(share.logprob), exp(share.raw_logprob), bar_width),
            # For a token that a stage removed, the model's own probability.
            (f"{_left(share):>9}", _DIM if share.logprob == -inf else style),
            no_wrap=True,
        )


def _left(share: Share) -> str:
    return f"({percent(share.raw_logprob)})" if share.logprob == -inf else percent(share.logprob)


def bar(share: float, ghost: float, width: int) -> list[tuple[str, str]]:
    """Returns the parts of a bar: the share, lighter where the stages added to it, and then the ghost if that
    is longer."""
    full, own = round(share * width), round(ghost * width)
    parts = [("█" * min(full, own), _OWN), ("█" * (full - own), _GAIN), ("░" * (own - full), _GHOST)]
    thin = "▏" if not full and share > 0 and not own else ""
    return [*parts, (thin, _OWN), (" " * (width - max(full, own, len(thin))), "")]


class Why(Widget):
    """The recorded numbers of the token, and its explanation once it has been computed."""

    def __init__(self) -> None:
        super().__init__(id="why")
        self._token: Token | None = None
        self._explained: Explanation | str | None = None

    def show(self, token: Token | None, explained: Explanation | str | None) -> None:
        self._token, self._explained = token, explained
        self.refresh()

    def render(self) -> RenderableType:
        token, explained = self._token, self._explained
        if token is None:
            return Text()
        facts = [
            f"rank {token.rank}",
            f"{-token.raw_logprob / log(2):.1f} bits",
            f"entropy {token.entropy / log(2):.1f}",
            f"luck {token.luck:+.2f}",
            token.source,
        ]
        line = Text(" · ".join(facts), _DIM)
        if explained is None:
            return Group(line, Text("…", _DIM))
        if isinstance(explained, str):
            return Group(line, Text(visible(explained, newlines=False), "color(208)"))
        sentence = Text(visible(explained.sentence, newlines=False))
        return (
            Group(sentence, Text(), _stages(explained), line)
            if explained.stages
            else Group(sentence, Text(), line)
        )


def _stages(explained: Explanation) -> Table:
    table = Table(box=None, pad_edge=False, header_style=_DIM, padding=(0, 2, 0, 0))
    table.add_column("stage", no_wrap=True)
    table.add_column("left", justify="right", no_wrap=True)
    table.add_column("mass kept", justify="right", no_wrap=True)
    for report in explained.stages:
        table.add_row(report.name, f"{report.survivors:,}", f"{100 * report.mass_kept:.1f} %")
    return table


class TreePanel(Widget):
    """All runs of the tree, one line each."""

    def __init__(self) -> None:
        super().__init__(id="tree")
        self._run: Run | None = None

    def show(self, run: Run) -> None:
        self._run = run
        self.refresh()

    def render(self) -> RenderableType:
        if self._run is None:
            return Text()
        drawn = list(self._run.tree().drawn())
        here = next(place for place, (_, run) in enumerate(drawn) if run is self._run)
        height = self.content_size.height
        first = max(0, min(here - height // 2, len(drawn) - height))
        lines = []
        for branch, run in drawn[first : first + height]:
            line = Text(branch, _DIM).append(
                visible(run_line(run), newlines=False), "bold" if run is self._run else ""
            )
            line.truncate(max(1, self.content_size.width), overflow="ellipsis")
            lines.append(line)
        return Text("\n").join(lines)
