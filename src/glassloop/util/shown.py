"""Values and names from hostile input in a form that is safe in a message: one line, printable and short."""

from __future__ import annotations

from collections.abc import Sequence, Sized

_MOST = 80  # characters
_FEW = 16  # entries of a value that is written out
_LEVELS = 2  # of lists and objects that are written out


def shown(value: object) -> str:
    """Returns a short text for any value. Never raises, and costs nothing for large values, nor for those in
    which the same list occurs at many places."""
    return _shown(value, _LEVELS)


def _shown(value: object, levels: int) -> str:
    if isinstance(value, (str, bytes)):
        return cut(repr(value[:_MOST]) + ("…" if len(value) > _MOST else ""))
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to print very long ones
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, Sized) and len(value) > _FEW:
        return f"{type(value).__name__} of {len(value)} entries"
    if type(value) in (list, tuple) and isinstance(value, Sequence) and value:
        inner = ", ".join(_shown(each, levels - 1) for each in value) if levels else "…"
        start, end = "[]" if isinstance(value, list) else "()"
        return cut(start + inner + ("," if end == ")" and levels and len(value) == 1 else "") + end)
    if type(value) is dict and value:
        pairs = (f"{_shown(name, 0)}: {_shown(each, levels - 1)}" for name, each in value.items())
        return cut("{" + (", ".join(pairs) if levels else "…") + "}")
    try:
        return cut(" ".join(repr(value).split()))
    except Exception:  # a huge number inside, too many levels, or an object with a faulty repr
        return type(value).__name__


def printable(text: str, most: int = _MOST) -> str:
    """Returns a text as it is, or escaped where it would not print, cut to at most `most` characters."""
    short = text if len(text) <= most else text[: most - 3] + "..."
    return short if short.isprintable() else cut(ascii(short), most)


def cut(text: str, most: int = _MOST) -> str:
    """Returns a text, shortened to at most `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"
