"""Which tokens of a run to look at first: those that surprised the model, those that won by luck, and the
first unlikely one, from which on a text may have gone wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, isnan, log

from glassloop.record.token import Token

UNLIKELY = 0.01  # the probability below which a token is unlikely
_BEFORE, _AFTER = 24, 16  # characters of the text around a token


def most_surprising(tokens: Sequence[Token], count: int = 1) -> list[int]:
    """Returns the places of the tokens that the model itself found least likely, the least likely one first.
    Forced tokens count only if there are no others."""
    scored_places = [place for place, token in enumerate(tokens) if not isnan(token.raw_logprob)]
    free = [place for place in scored_places if tokens[place].source != "forced"]
    return sorted(free or scored_places, key=lambda place: tokens[place].raw_logprob)[:count]


def first_unlikely(tokens: Sequence[Token]) -> int | None:
    """Returns the place of the first token that the model itself gave a probability below 1 %, or None.
    Forced tokens do not count."""
    most = log(UNLIKELY)
    unlikely = (
        place for place, token in enumerate(tokens) if token.raw_logprob < most and token.source != "forced"
    )
    return next(unlikely, None)


def around(tokens: Sequence[Token], place: int) -> tuple[str, str]:
    """Returns the text of the answer before and after a token, a few words of each. Where text is left out,
    an ellipsis stands for it."""
    near = _BEFORE + _AFTER  # tokens whose texts are long enough, unless they are parts of characters
    before = "".join([token.text for token in tokens[max(0, place - near) : place]])
    after = "".join([token.text for token in tokens[place + 1 : place + 1 + near]])
    if len(before) > _BEFORE or place > near:
        cut = before[-_BEFORE:]
        before = "…" + (cut[cut.find(" ") + 1 :] or cut)  # from the beginning of a word
    if len(after) > _AFTER or len(tokens) > place + 1 + near:
        cut = after[:_AFTER]
        after = (cut[: cut.rfind(" ")] if cut.rfind(" ") > 0 else cut) + "…"
    return before, after


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
