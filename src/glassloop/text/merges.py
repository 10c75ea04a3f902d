"""Merges for vocabularies that list none: SentencePiece scores and tiktoken ranks order the *results*.

Both algorithms repeatedly join the neighbours whose join is the best token. `tokenizers` expects pairs
instead, so every way of cutting a token into two tokens becomes a merge, ranked by the token it makes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# Far longer than any token in use; a hostile file cannot make the cuts below quadratic.
LONGEST_PIECE = 1024


def merges_from_order(pieces: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the merges of a vocabulary that is given best token first.

    The order among the cuts of one token is free. Between two places that nothing has been merged across, its
    letters are always merged in the same steps, so the last two neighbours are always the same two: only one
    of the cuts is ever used.
    """
    vocabulary = frozenset(pieces)
    return [
        (left, right)
        for piece in pieces
        for cut in range(1, len(piece))
        if (left := piece[:cut]) in vocabulary and (right := piece[cut:]) in vocabulary
    ]


@contextmanager
def many_small_objects() -> Iterator[None]:
    """Turns the garbage collector off while half a million tuples are made: it would double the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
