"""What `generate --show` adds to a text on a terminal: how surprising each token was, what else was likely,
which tokens were guessed ahead, and which guesses were wrong. In a pipe the text stays as it is.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from math import log
from typing import TYPE_CHECKING

from glassloop.cli.terminal import has_colours, percent, quoted, visible

if TYPE_CHECKING:
    from glassloop.trace.run import Run
    from glassloop.trace.token import Token


class Show(StrEnum):
    SURPRISE = "surprise"
    ALTERNATIVES = "alternatives"
    DRAFTS = "drafts"


# Bits of surprise below which a token has this colour (of the 256 that terminals have).
_SURPRISE = ((1.0, None), (3.0, 114), (6.0, 221), (9.0, 208), (float("inf"), 196))
_SOURCES = {"draft": 80, "forced": 176, "beam": 221}
_DIM = 244
_LIKELY = log(0.05)  # alternatives from 5 % on are worth their place


def surprise_colour(token: Token) -> int | None:
    """None for what the model itself thought as likely as all else together."""
    bits = -token.raw_logprob / log(2)
    return next((colour for limit, colour in _SURPRISE if bits < limit), _SURPRISE[-1][1])


class Painter:
    """Writes a run's text to stdout, token by token."""

    def __init__(self, show: Show | None) -> None:
        self._show = show
        self._terminal = sys.stdout.isatty()
        self._colours = has_colours()

    def write(self, token: Token) -> None:
        sys.stdout.write(self.painted(token) if self._terminal else token.text)
        sys.stdout.flush()

    def end(self, run: Run) -> None:
        """What the end of the run made certain, and the end of the line."""
        guess = self._refused(run.end) if self._show is Show.DRAFTS else ""
        print(visible(run.tail) + guess if self._terminal else run.tail, flush=True)

    def painted(self, token: Token) -> str:
        text = visible(token.text)
        if self._show is Show.SURPRISE:
            return self._in(surprise_colour(token), text)
        if self._show is Show.DRAFTS:
            return self._refused(token) + self._in(_SOURCES.get(token.source), text)
        if self._show is Show.ALTERNATIVES:
            others = [other for other in token.alternatives if other.id != token.id]
            told = [
                f"{quoted(other.text)} {percent(other.raw_logprob)}"
                for other in others
                if other.raw_logprob >= _LIKELY
            ]
            return text + (self._in(_DIM, f"‹{', '.join(told)}›") if told else "")
        return text

    def _refused(self, token: Token | None) -> str:
        refused = None if token is None else token.refused
        return "" if refused is None else self._in(_DIM, f"‹✗ {quoted(refused.text)}›")

    def legend(self, run: Run) -> str:
        """One line for stderr: what the colours mean."""
        if self._show is None or not self._terminal:
            return ""
        if self._show is Show.ALTERNATIVES:
            return "‹…› what else had 5 % or more"
        if self._show is Show.DRAFTS:
            right = f"{run.drafts.accepted} of {run.drafts.proposed} guesses were right"
            ahead = f"{self._in(_SOURCES['draft'], 'guessed ahead')} · " if self._colours else ""
            return f"{ahead}{self._in(_DIM, '‹✗ …›')} guessed, and not chosen · {right}"
        if not self._colours:
            return ""
        names = ("below 1 bit", "below 3", "below 6", "below 9", "9 bits and more")
        return "surprise: " + " · ".join(
            self._in(colour, name) for (_, colour), name in zip(_SURPRISE, names, strict=True)
        )

    def _in(self, colour: int | None, text: str) -> str:
        return text if colour is None or not self._colours else f"\x1b[38;5;{colour}m{text}\x1b[39m"
