"""Which tokens of a run to look at first: those that surprised the model, and those that won by luck."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, isnan, log

from glassloop.trace.token import Token


def most_surprising(tokens: Sequence[Token], count: int = 1) -> list[int]:
    """Returns the places of the tokens that the model itself found least likely, the least likely one first.
    Forced tokens count only if there are no others."""
    known = [place for place, token in enumerate(tokens) if not isnan(token.raw_logprob)]
    free = [place for place in known if tokens[place].source != "forced"]
    return sorted(free or known, key=lambda place: tokens[place].raw_logprob)[:count]


def luckiest(tokens: Sequence[Token], count: int) -> list[int]:
    """Returns the places of the tokens that were not the most likely after the stages and won by luck, the
    one with the most luck first."""
    won = [
        place
        for place, token in enumerate(tokens)
        if token.source in ("sampled", "draft") and token.rank_after > 1 and token.luck > 0
    ]
    return sorted(won, key=lambda place: -tokens[place].luck)[:count]


def surprise_bits(token: Token) -> float | None:
    """Returns how surprising the token was to the model, in bits; None if its probability was 0 or is
    not known."""
    return -token.raw_logprob / log(2) if isfinite(token.raw_logprob) else None
