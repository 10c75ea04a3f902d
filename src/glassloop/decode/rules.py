"""Rules: what stages do to a row of logits, in a form that an op set can carry out by itself.

A stage that can say in advance what it does returns a rule. `decode/candidates.py` follows rules in NumPy; an
op set with a chooser follows all the rules of a request, and runs the race, in one call for many rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from glassloop.ops.rows import Float64, RuleError


class Action(IntEnum):
    """What a rule does. The numbers are those of ops/native/choosing.h."""

    DIVIDE = 0  # divides the positive logits of these ids by the amount, and multiplies the negative ones
    LESS = 1  # subtracts from the logits of these ids the amount, or the amount times a number for each
    REMOVE = 2  # removes these ids
    KEEP = 3  # removes all tokens outside a mask as wide as the vocabulary
    SCALE = 4  # multiplies every logit by the amount
    FIRST = 5  # keeps the highest, as many as the amount says
    MASS = 6  # keeps the fewest of the likeliest that together have this probability
    SHARE = 7  # keeps those whose probability is at least this share of the likeliest's
    PROBABILITY = 8  # keeps those with at least this probability
    TYPICAL = 9  # keeps those of the most typical surprise that together have this probability
    SIGMA = 10  # keeps those whose logit is within so many standard deviations of the highest
    EXCLUDE = 11  # removes those with at least this probability but the least likely of them
    ETA = 12  # keeps those with at least the probability min(ε, √ε · exp(-entropy)), where ε is the amount


class Rule(NamedTuple):
    action: Action
    amount: float = 0.0
    which: NDArray[Any] | None = None  # ids in int32, each once if the action moves them; or a mask (bool)
    numbers: Float64 | None = None  # one for each id


_BY_IDS = (Action.DIVIDE, Action.LESS, Action.REMOVE)


def check_rule(rule: Rule, width: int) -> None:
    """Raises unless a rule can be followed on a row of `width` logits. C checks the same for itself."""
    action, _, which, numbers = rule
    wanted = np.int32 if action in _BY_IDS else np.bool_ if action is Action.KEEP else None
    if (wanted is None) != (which is None) or (which is not None and which.dtype != wanted):
        raise RuleError(f"rule {action!r} has {which!r:.80}; ids in int32, or for KEEP a mask, are expected")
    if which is None:
        return
    if numbers is not None and (numbers.dtype != np.float64 or numbers.shape != which.shape):
        raise RuleError(f"rule {action!r} has {numbers!r:.80}; a float64 for each id is expected")
    if action is Action.KEEP:
        fits = which.shape == (width,)
    else:
        fits = which.ndim == 1 and (not len(which) or (which.min() >= 0 and which.max() < width))
    if not fits:
        raise RuleError(f"rule {action!r} does not fit a row of {width} logits")


@dataclass(eq=False, slots=True)
class RowRequest:
    """How a token is to be chosen from a row of logits; the same request serves any number of rows."""

    head: int  # how many of the highest logits to sort at first; at most the width of the row
    scale: float  # the scale at which the rules need the log-sum-exp of the untouched row; 1 if they do not
    rules: Sequence[Rule]
    branch_key: int | None = None  # the key of the branch's luck; None: the highest logit wins
    alternatives: int = 0  # how many of the model's likeliest tokens to record; at most `head`
    prepared: Any = None  # for the op set to keep what it has made of the request
