"""The help screen of `watch`, made from its keys."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.events import Click, Key
from textual.screen import ModalScreen
from textual.widgets import Static

from glassloop.cli.watch.keys import KEYS


class Help(ModalScreen[None]):
    def compose(self) -> ComposeResult:
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for key in KEYS:
            table.add_row(Text(key.shown, "bold"), key.help)
        table.add_row()
        table.add_row("", Text("bars: probability after the stages; ░ the model's own", "dim"))
        table.add_row("", Text("press any key to close", "dim"))
        box = Static(table, id="help")
        box.border_title = "keys"
        yield box

    def on_key(self, event: Key) -> None:
        event.stop()
        event.prevent_default()
        self.dismiss()

    def on_click(self, event: Click) -> None:
        self.dismiss()
