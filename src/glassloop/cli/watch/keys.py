"""The keys of `watch`, as data: the bindings, the line at the bottom and the help are all made from this."""

from __future__ import annotations

from typing import NamedTuple


class Key(NamedTuple):
    keys: str  # as textual names them, parted by commas
    action: str
    shown: str
    short: str  # for the line at the bottom; empty: not there
    help: str


KEYS = (
    Key("left", "move(-1)", "←", "", "the token before"),
    Key("right", "move(1)", "→", "token", "the next token"),
    Key("up", "choose(-1)", "↑", "", "the alternative above"),
    Key("down", "choose(1)", "↓", "alternative", "the alternative below"),
    Key("enter", "fork", "⏎", "fork", "fork: go on with the chosen alternative instead"),
    Key("e", "edit", "e", "edit", "edit: go on with a text of your own from this token on"),
    Key("space", "play", "space", "play", "play or pause: a live run as it comes, a record to read along"),
    Key("n", "uncertain(1)", "n", "", "the next token that the model was not sure of"),
    Key("p", "uncertain(-1)", "p", "", "the previous one"),
    Key("home", "end(-1)", "Home", "", "the first token"),
    Key("end", "end(1)", "End", "", "the last token"),
    Key("t", "run(1)", "t", "tree", "the next run of the tree"),
    Key("T", "run(-1)", "T", "", "the previous one"),
    Key("s", "stop", "s", "", "stop a live run"),
    Key("question_mark", "help", "?", "help", "this"),
    Key("q,ctrl+c", "quit", "q", "quit", "quit"),
)


def hints() -> list[tuple[str, str]]:
    """Keys and words for the line at the bottom; a key without a word belongs to the one after it."""
    made, before = [], ""
    for key in KEYS:
        if key.short:
            made.append((before + key.shown, key.short))
        before = key.shown if key.shown in "←↑" else ""
    return made
