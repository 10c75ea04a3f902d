"""The keys of `watch` as data: the bindings, the line at the bottom and the help are made from it."""

from __future__ import annotations

from typing import NamedTuple


class Key(NamedTuple):
    keys: str  # as Textual names them, separated by commas
    action: str
    shown: str
    short: str  # for the line at the bottom; empty if it is not shown there
    help: str


KEYS = (
    Key("left", "move(-1)", "←", "", "the previous token"),
    Key("right", "move(1)", "→", "token", "the next token"),
    Key("up", "choose(-1)", "↑", "", "the alternative above"),
    Key("down", "choose(1)", "↓", "alternative", "the alternative below"),
    Key("enter", "fork", "⏎", "fork", "fork: continue with the selected alternative instead"),
    Key("e", "edit", "e", "edit", "edit: continue with your own text from this token on"),
    Key("space", "play", "space", "play", "play or pause: follow a live run, or read a recorded one"),
    Key("n", "uncertain(1)", "n", "", "the next token with a probability below one half"),
    Key("p", "uncertain(-1)", "p", "", "the previous one"),
    Key("home", "end(-1)", "Home", "", "the first token"),
    Key("end", "end(1)", "End", "", "the last token"),
    Key("f", "to_fork", "f", "", "the token at which this run was forked"),
    Key("t", "run(1)", "t", "tree", "the next run of the tree"),
    Key("T", "run(-1)", "T", "", "the previous one"),
    Key("s", "stop", "s", "", "stop a live run"),
    Key("question_mark", "help", "?", "help", "this help"),
    Key("q,ctrl+c", "quit", "q", "quit", "quit"),
)

# Of a text that was written by diffusion.
PASS_KEYS = (
    Key("left", "move(-1)", "←", "", "the previous pass"),
    Key("right", "move(1)", "→", "pass", "the next pass"),
    Key("up", "place(-1)", "↑", "", "the place before it in the block"),
    Key("down", "place(1)", "↓", "place", "the place after it in the block"),
    Key("space", "play", "space", "play", "play or pause: follow a live run, or play a recorded one"),
    Key("home", "end(-1)", "Home", "", "the first pass"),
    Key("end", "end(1)", "End", "", "the last pass, and follow a live run"),
    Key("n", "block(1)", "n", "block", "the first pass of the next block"),
    Key("p", "block(-1)", "p", "", "the first pass of this block, or of the one before"),
    Key("r", "taken_back(1)", "r", "revised", "the next pass before which tokens were taken back"),
    Key("t", "run(1)", "t", "", "the next sample of the request"),
    Key("s", "stop", "s", "", "stop a live run"),
    Key("question_mark", "help", "?", "help", "this help"),
    Key("q,ctrl+c", "quit", "q", "quit", "quit"),
)


def hints(keys: tuple[Key, ...] = KEYS) -> list[tuple[str, str]]:
    """Returns keys and words for the line at the bottom. ← and ↑ are shown with the key that follows them."""
    words, before = [], ""
    for key in keys:
        if key.short:
            words.append((before + key.shown, key.short))
        before = key.shown if key.shown in "←↑" else ""
    return words
