"""Values of hostile files as they may stand in an error: one line, printable and short."""

from __future__ import annotations

import reprlib

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_SHORT.maxlevel = 2


def shown(value: object) -> str:
    """Returns a value as Python writes it, cut to 100 characters."""
    return " ".join(_SHORT.repr(value).split())[:100]


def printable(text: str, most: int = 80) -> str:
    """Returns a text as it is, or escaped where it would not print, cut to so many characters."""
    short = text if len(text) <= most else text[: most - 3] + "..."
    return short if short.isprintable() else ascii(short)
