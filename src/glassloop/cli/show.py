"""How `generate --show` and `chat --show` write a text on a terminal: with the surprise of each token, with
alternatives, with accepted and refused drafts, or as indented JSON. In a pipe the text is written as it is,
unless `--color always` is given.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from math import log
from typing import TYPE_CHECKING

from glassloop.cli.terminal import always_colours, dim, has_colours, json_text, percent, quoted, visible

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

    from glassloop.record.run import Run
    from glassloop.record.token import Token


class Show(StrEnum):
    SURPRISE = "surprise"
    ALTERNATIVES = "alternatives"
    DRAFTS = "drafts"
    JSON = "json"


# The colour (of 256) for a token whose surprise is below this many bits.
_SURPRISE = ((1.0, None), (3.0, 114), (6.0, 221), (9.0, 208), (float("inf"), 196))
_SOURCES = {"draft": 80, "forced": 176, "beam": 221}
_DIM = 244
_LIKELY = log(0.05)  # alternatives below 5 % are not shown


def surprise_colour(token: Token) -> int | None:
    """Returns the colour of a token, or None if the model gave it a probability above one half, or none
    that is known."""
    if token.raw_logprob != token.raw_logprob:
        return None
    bits = -token.raw_logprob / log(2)
    return next((colour for limit, colour in _SURPRISE if bits < limit), _SURPRISE[-1][1])


class Painter:
    """Writes a run's text to stdout, token by token."""

    def __init__(self, show: Show | None) -> None:
        self._show = show
        self._as_json = sys.stdout.isatty() and show is Show.JSON
        # Whether the text is painted, and control characters are escaped; else it is written unchanged.
        self._painted = sys.stdout.isatty() or (always_colours() and show not in (None, Show.JSON))
        self._colours = has_colours()
        if show is not None and not (self._painted or self._as_json):
            needs = "a terminal" if show is Show.JSON else "a terminal, or --color always in a pipe"
            print(f"glassloop: --show {show} needs {needs}; the text is printed without it", file=sys.stderr)
        self._json = ""  # the text so far, if it is shown as JSON
        self._live: Live | None = None

    def begin(self, text: str) -> None:
        """Writes the text that a fork has from its parent."""
        if self._as_json:
            self._draw_json(text)
        else:
            sys.stdout.write(dim(visible(text)) if self._painted else text)

    def write(self, token: Token) -> None:
        if self._as_json:
            self._draw_json(token.text)
            return
        sys.stdout.write(self.painted(token) if self._painted else token.text)
        sys.stdout.flush()

    def end(self, run: Run) -> None:
        """Writes the text that was held back until the end of the run, and ends the line."""
        if self._as_json:
            self._draw_json(run.tail)
            self.close()
            return
        refused = self._refused(run.end) if self._show is Show.DRAFTS else ""
        print(visible(run.tail) + refused if self._painted else run.tail, flush=True)

    def close(self) -> None:
        """Gives the terminal back, if JSON is being drawn."""
        if self._live is not None:
            self._live.stop()
        self._json, self._live = "", None

    def _draw_json(self, text: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._json += text
        if self._live is None:
            self._live = Live(console=Console(), auto_refresh=False)
            self._live.start()
        self._live.update(_laid_out(self._json), refresh=True)

    def painted(self, token: Token) -> str:
        text = visible(token.text)
        if self._show is Show.SURPRISE:
            return self._in(surprise_colour(token), text)
        if self._show is Show.DRAFTS:
            return self._refused(token) + self._in(_SOURCES.get(token.source), text)
        if self._show is Show.ALTERNATIVES:
            others = [other for other in token.alternatives if other.id != token.id]
            likely = [
                f"{quoted(other.text)} {percent(other.raw_logprob)}"
                for other in others
                if other.raw_logprob >= _LIKELY
            ]
            return text + (self._in(_DIM, f"‹{', '.join(likely)}›") if likely else "")
        return text

    def _refused(self, token: Token | None) -> str:
        refused = None if token is None else token.refused
        return "" if refused is None else self._in(_DIM, f"‹✗ {quoted(refused.text)}›")

    def legend(self, run: Run) -> str:
        """Returns one line for stderr that says what the colours mean."""
        if self._show in (None, Show.JSON) or not self._painted:
            return ""
        if self._show is Show.ALTERNATIVES:
            return "‹…› other tokens with a probability of 5 % or more"
        if self._show is Show.DRAFTS:
            accepted = f"{run.drafts.accepted} of {run.drafts.proposed} drafts accepted"
            ahead = f"{self._in(_SOURCES['draft'], 'accepted draft')} · " if self._colours else ""
            return f"{ahead}{self._in(_DIM, '‹✗ …›')} refused draft · {accepted}"
        if not self._colours:
            return ""
        names = ("below 1 bit", "below 3", "below 6", "below 9", "9 bits and more")
        return "surprise: " + " · ".join(
            self._in(colour, name) for (_, colour), name in zip(_SURPRISE, names, strict=True)
        )

    def _in(self, colour: int | None, text: str) -> str:
        return text if colour is None or not self._colours else f"\x1b[38;5;{colour}m{text}\x1b[39m"


def _laid_out(text: str) -> Text:
    """Returns a JSON text as far as it can be read, indented; any other text as it is."""
    from rich.highlighter import JSONHighlighter
    from rich.text import Text

    from glassloop.decode.partial_json import partial_json
    from glassloop.errors import TextError

    try:
        value = partial_json(text)
    except TextError:
        return Text(visible(text))
    return Text("…") if value is None else JSONHighlighter()(json_text(value, indent=2))
