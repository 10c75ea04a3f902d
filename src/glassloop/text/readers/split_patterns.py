"""Decides which regular expressions of a tokenizer.json are safe to run.

The expressions that cut text into words come with the file, and run on the text of every request. The
library's engine backtracks: a repeat inside a repeat can take time exponential in the text. No tokenizer
needs one, so such expressions are refused, and so are those with many repeats in a row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LONGEST = 20_000
_MOST_REPEATS = 8  # in one alternative: an optional part counts one, others two; GPT-4o has six
_ITEM = re.compile(
    r"""(?P<reference>\\[1-9kg])
    | (?P<atom>\\[pP]\{[^}]*\} | \\x\{[^}]*\} | \\.)
    | (?P<open>\((?:\?(?:<?[=!]|[imxWDSPy\-]*:|>|<[^>]*>|~\||\#[^)]*|[imxWDSPy\-]+(?=\))))?)
    | (?P<close>\))
    | (?P<branch>\|)
    | (?P<repeat>([*+?]|\{\d*,?\d*\})[?+]?)""",  # lazy, possessive
    re.VERBOSE | re.DOTALL,
)


@dataclass
class _Group:
    """The repeats in the current alternative of a group, and in the one with most."""

    now: int = 0
    most: int = 0
    alternatives: int = 1


def complaint(pattern: str) -> str | None:
    """Returns what is wrong with an expression, or None."""
    if len(pattern) > _LONGEST:
        return f"has {len(pattern)} characters; at most {_LONGEST} are expected"
    groups, last = [_Group()], _Group()
    place = 0
    while place < len(pattern):
        if pattern[place] == "[":
            place, last = _end_of_class(pattern, place), _Group()
            continue
        match = _ITEM.match(pattern, place)
        place = match.end() if match else place + 1
        kind = match.lastgroup if match else "atom"
        if kind == "reference":
            return "refers back to what it has matched"
        if kind == "open":
            groups.append(_Group())
        elif kind == "branch":
            groups[-1].now = 0
            groups[-1].alternatives += 1
        elif kind == "close" and len(groups) > 1:
            last = groups.pop()
            groups[-1].now += last.most
        elif kind == "repeat" and match:
            times = _times(match[0])
            if times is None and (last.most or last.alternatives > 1):
                return "repeats what can be matched in several ways"
            groups[-1].now += last.most * ((times or 1) - 1) + _choices(match[0])
            last = _Group(most=1)  # to repeat it would be a repeat of a repeat
        groups[-1].most = max(groups[-1].most, groups[-1].now)
        if groups[-1].most > _MOST_REPEATS:
            return "has too many repeats in a row"
        if kind == "atom":
            last = _Group()
    return None


def _times(repeat: str) -> int | None:
    """Returns how often a quantifier repeats, if that is at most once or a fixed number, else None."""
    if repeat[0] == "?":
        return 1
    least, comma, most = repeat.rstrip("?+")[1:-1].partition(",")
    return int(least) if least.isdigit() and (not comma or least == most) else None


def _choices(repeat: str) -> int:
    """Returns how much a quantifier counts among the repeats in a row."""
    return 1 if repeat[0] == "?" else 0 if _times(repeat) is not None else 2


def _end_of_class(pattern: str, place: int) -> int:
    """Returns the place after the character class that begins here. Classes may be nested."""
    depth = 0
    while place < len(pattern):
        if pattern[place] == "\\":
            place += 1
        elif pattern[place] == "[":
            depth += 1
        elif pattern[place] == "]":
            depth -= 1
            if depth == 0:
                return place + 1
        place += 1
    return place
