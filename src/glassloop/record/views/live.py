"""A run in a notebook that can be forked with a click (extra: `notebook`).

`LiveRun` is the state of the view, in plain Python. `widget` wraps it in an `anywidget`, which works in
JupyterLab, VS Code and Colab; a saved notebook shows the static view.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from glassloop.errors import GlassloopError
from glassloop.record.run_record import RunRecord
from glassloop.record.views.notebook import run_view
from glassloop.record.views.page import record
from glassloop.record.views.token_html import facts_line, prompt_text, token_span
from glassloop.util.html_text import tag, text_html, view
from glassloop.util.shown import shown

if TYPE_CHECKING:
    from anywidget import AnyWidget

R = TypeVar("R", bound=RunRecord)
SCRIPT = Path(__file__).parent / "widget.js"
_MOST_TOKENS = 4_000  # in a view


class LiveRun(Generic[R]):
    """A run that is shown, and the runs that were forked from it by clicks, with `fork` (`Run.fork`)."""

    def __init__(self, run: R, fork: Callable[..., R]) -> None:
        self._fork = fork
        self.run = run  # the one that is shown: the latest fork
        self.history = [run]  # all that were shown, the first one first

    @property
    def html(self) -> str:
        """The view of the run. Tokens have their place as `data-k`."""
        run = self.run
        prompt = prompt_text(run)
        spans = [token_span(token, data_k=str(at)) for at, token in enumerate(run.tokens[:_MOST_TOKENS])]
        return view(
            tag("div", facts_line(run), class_="note"),
            tag(
                "div",
                None if prompt is None else tag("span", prompt, class_="prompt"),
                *spans,
                text_html(run.tail),
                class_="text",
            ),
            label="A run; choose a token to see what else was likely",
        )

    @property
    def records(self) -> str:
        """The records of the tokens, as JSON: those that the panel shows."""
        records = {str(at): record(token) for at, token in enumerate(self.run.tokens[:_MOST_TOKENS])}
        return json.dumps(records, separators=(",", ":"), allow_nan=False)

    def fork(self, message: object) -> R:
        """Makes the fork that a click asked for, shows it, and returns it. Raises if the message asks for
        something else than a token at a place of the run."""
        click = message.get("fork") if isinstance(message, dict) else None
        at, token = (click.get("at"), click.get("token")) if isinstance(click, dict) else (None, None)
        if type(at) is not int or type(token) is not int or not 0 <= at < len(self.run.tokens):
            raise GlassloopError(
                f"fork is {shown(click)}; a place from 0 to {len(self.run.tokens) - 1} and a token id are"
                " expected"
            )
        self.run = self._fork(self.run, at, token=token)
        self.history.append(self.run)
        return self.run

    def back(self) -> R:
        """Shows the run before the latest fork again. The fork stays in the tree."""
        if len(self.history) > 1:
            self.history.pop()
            self.run = self.history[-1]
        return self.run


def widget(run: R, fork: Callable[..., R], on_fork: Callable[[R], None] | None = None) -> AnyWidget:
    """Returns a widget that shows a run. Its `run` is the latest fork, `history` has all of them, and
    `on_fork` is called with each new one, which `fork` makes."""
    try:
        import anywidget
        import traitlets
    except ImportError:
        raise GlassloopError(
            "the live view needs the package anywidget: pip install 'glassloop[notebook]'"
        ) from None

    class RunWidget(anywidget.AnyWidget):  # type: ignore[misc,unused-ignore]
        """The live view of a run."""

        _esm = SCRIPT
        html = traitlets.Unicode().tag(sync=True)
        records = traitlets.Unicode("{}").tag(sync=True)
        selected = traitlets.Int(-1).tag(sync=True)
        error = traitlets.Unicode().tag(sync=True)
        busy = traitlets.Bool(False).tag(sync=True)

        def __init__(self) -> None:
            self.live = LiveRun(run, fork)
            super().__init__(html=self.live.html, records=self.live.records)
            self.on_msg(self._clicked)

        @property
        def run(self) -> R:
            return self.live.run

        @property
        def history(self) -> list[R]:
            return self.live.history

        def back(self) -> R:
            """Shows the run before the latest fork again."""
            self.live.back()
            self._show()
            return self.live.run

        def _clicked(self, _: Any, message: object, buffers: Any) -> None:
            self.error, self.busy = "", True
            try:
                forked = self.live.fork(message)
                self._show()
            except GlassloopError as error:
                self.error = str(error)
                return
            finally:
                self.busy = False
            if on_fork is not None:
                on_fork(forked)

        def _show(self) -> None:
            # Records first: the view is drawn when `html` changes.
            self.records, self.selected = self.live.records, -1
            self.html = self.live.html

        def _repr_html_(self) -> str:
            return run_view(self.live.run)

    return RunWidget()
