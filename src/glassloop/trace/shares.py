"""The alternatives of a token as shares of a whole: those recorded, the chosen one, and all the others
together, so that they sum to one.
"""

from __future__ import annotations

from math import exp, inf, log
from typing import NamedTuple

from glassloop.trace.token import Token


class Share(NamedTuple):
    id: int | None  # None: all others
    text: str | None
    logprob: float  # after the stages; minus infinity where one of them removed it
    raw_logprob: float  # the model's own


def shares(token: Token) -> list[Share]:
    """Likeliest first, to the model itself; the others last."""
    named = [Share(*other) for other in token.alternatives]
    if all(share.id != token.id for share in named):
        named.append(Share(token.id, token.piece, token.logprob, token.raw_logprob))
    others = Share(
        None,
        None,
        _rest([share.logprob for share in named]),
        _rest([share.raw_logprob for share in named]),
    )
    return [*named, others]


def _rest(logprobs: list[float]) -> float:
    left = 1.0 - sum(exp(logprob) for logprob in logprobs)
    # The last bits of a sum are rounding, and no token.
    return log(left) if left > 1e-9 else -inf
