"""Merges for vocabularies that list none: SentencePiece scores and tiktoken ranks order the *results*.

Both algorithms join, again and again, the neighbours whose join is the best token. `tokenizers` wants the
pairs spelled out instead, so every way of cutting a token into two tokens becomes a merge, ranked by the
token it makes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# No token anyone trains is near this long; it keeps a hostile file from making the cuts below quadratic.
LONGEST_PIECE = 1024


def merges_from_order(pieces: Sequence[str]) -> list[tuple[str, str]]:
    """The merges of a vocabulary given best token first.

    The order among the cuts of one token is free. Wherever its letters stand between two places that nothing
    has been merged across, they come together in the same steps, so when two neighbours are left they are
    always the same two: only one of the cuts is ever met.
    """
    known = frozenset(pieces)
    return [
        (left, right)
        for piece in pieces
        for cut in range(1, len(piece))
        if (left := piece[:cut]) in known and (right := piece[cut:]) in known
    ]


@contextmanager
def many_small_objects() -> Iterator[None]:
    """Hold Python's cycle collector off while half a million tuples are made: it would double the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
