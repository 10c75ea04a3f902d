"""Values and names from hostile input in a form that is safe in a message: one line, printable and short."""

from __future__ import annotations

from collections.abc import Sized

_MOST = 80  # characters
_FEW = 16  # entries of a value that is written out


def shown(value: object) -> str:
    """Returns a short text for any value. Never raises, and costs nothing for large values."""
    if isinstance(value, (str, bytes)):
        return cut(repr(value[:_MOST]) + ("…" if len(value) > _MOST else ""))
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to print very long ones
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, Sized) and len(value) > _FEW:
        return f"{type(value).__name__} of {len(value)} entries"
    try:
        return cut(" ".join(repr(value).split()))
    except Exception:  # a huge number inside, too many levels, or an object with a faulty repr
        return type(value).__name__


def printable(text: str, most: int = _MOST) -> str:
    """Returns a text as it is, or escaped where it would not print, cut to at most `most` characters."""
    short = text if len(text) <= most else text[: most - 3] + "..."
    return short if short.isprintable() else ascii(short)


def cut(text: str, most: int = _MOST) -> str:
    """Returns a text, shortened to at most `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"
