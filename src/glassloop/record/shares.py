"""The alternatives of a token as shares of a whole: the recorded ones, the chosen token, and all others
together, so that the probabilities sum to one.
"""

from __future__ import annotations

from math import exp, inf, log
from typing import NamedTuple

from glassloop.record.token import Token


class Share(NamedTuple):
    """The probability of one token, or of all others together (`id` and `text` are None)."""

    id: int | None
    text: str | None
    logprob: float  # after the stages; minus infinity if a stage removed the token
    raw_logprob: float  # the model's own


def shares(token: Token) -> list[Share]:
    """Returns the shares in the model's own order; all others together come last."""
    named = [Share(*other) for other in token.alternatives]
    if all(share.id != token.id for share in named):
        named.append(Share(token.id, token.piece, token.logprob, token.raw_logprob))
    after, raw = (_rest([getattr(share, name) for share in named]) for name in ("logprob", "raw_logprob"))
    return [*named, Share(None, None, after, raw)]


def _rest(logprobs: list[float]) -> float:
    """Returns the log-probability that is left for other tokens."""
    left = 1.0 - sum(exp(logprob) for logprob in logprobs)
    # Anything smaller is rounding.
    return log(left) if left > 1e-9 else -inf
