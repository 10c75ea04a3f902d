"""Values of hostile files as they may stand in an error: one line, printable and short."""

from __future__ import annotations

import reprlib

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_SHORT.maxlevel = 2


def shown(value: object) -> str:
    """Returns a value as Python writes it, cut to 100 characters."""
    return " ".join(_SHORT.repr(value).split())[:100]


def printable(name: str) -> str:
    """Returns a name as it is, or escaped where it would not print, cut to 80 characters."""
    short = name if len(name) <= 80 else name[:77] + "..."
    return short if short.isprintable() else ascii(short)
