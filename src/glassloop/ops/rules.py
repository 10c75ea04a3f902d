"""Rules: what a stage does to a row of logits, in terms that an op set can carry out by itself.

A stage that can say beforehand what it does gives a rule; `decode/candidates.py` follows it in NumPy, and an
op set may follow all the rules of a request, and hold the race, in one call for many rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from glassloop.errors import GlassloopError
from glassloop.ops.chosen import Chosen
from glassloop.ops.quant import Float32
from glassloop.ops.vocabulary import Float64, Int32, Summary


class Action(IntEnum):
    """In the order of ops/native/choosing.c."""

    DIVIDE = 0  # these ids: a positive logit divided by the amount, a negative one multiplied
    LESS = 1  # these ids: less by the amount, or by the amount times a number for each
    REMOVE = 2  # these ids
    KEEP = 3  # no token but those of a mask as wide as the vocabulary
    SCALE = 4  # every logit times the amount
    FIRST = 5  # the so many highest
    MASS = 6  # the likeliest, as few as will do for this much of the probability
    SHARE = 7  # those at least so likely relative to the likeliest
    PROBABILITY = 8  # those at least so likely


class Rule(NamedTuple):
    action: Action
    amount: float = 0.0
    which: NDArray[Any] | None = None  # ids, each once where they move (int32), or a mask (bool)
    numbers: Float64 | None = None  # one for each id


class RuleError(GlassloopError):
    """A rule, or what is asked of a row, that does not fit the row. Nothing was changed."""


_OF_IDS = (Action.DIVIDE, Action.LESS, Action.REMOVE)


def check_rule(rule: Rule) -> None:
    """Raises unless a rule's arrays are of the kind that its action reads. Whether ids and masks fit a row is
    checked where the rule is followed."""
    action, _, which, numbers = rule
    kind = np.int32 if action in _OF_IDS else np.bool_ if action == Action.KEEP else None
    if which is None:
        fits = kind is None
    else:
        fits = kind is not None and which.dtype == kind and which.ndim == 1 and which.flags.c_contiguous
    if not fits:
        raise RuleError(f"rule {action!r} has {which!r:.80}; ids in int32, or for KEEP a mask, are expected")
    if numbers is None:
        return
    if which is None or numbers.dtype != np.float64 or numbers.shape != which.shape:
        raise RuleError(f"rule {action!r} has {numbers!r:.80}; a float64 for each id is expected")
    if not numbers.flags.c_contiguous:
        raise RuleError(f"rule {action!r} has numbers that do not lie together")


def check_fit(rule: Rule, width: int) -> None:
    """Raises unless a rule can be followed on a row of so many logits: C checks the same for itself."""
    check_rule(rule)
    action, _, which, _ = rule
    if which is None or not len(which):
        return
    if len(which) != width if action == Action.KEEP else which.min() < 0 or which.max() >= width:
        raise RuleError(f"rule {action!r} does not fit a row of {width} logits")


@dataclass(eq=False, slots=True)
class Asked:
    """What is wanted of rows of logits, of one or of one after another."""

    head: int  # how many of the highest to sort at first; no more than there are
    scale: float  # at which the rules will ask for the log-sum-exp of the row as it came; or 1
    rules: Sequence[Rule]
    branch: int | None = None  # the key of its luck; None: the highest wins
    wanted: int = 0  # how many of the model's favourites to tell of; no more than the head has
    prepared: Any = None  # what an op set has made of it, for itself


# What is wanted, of which row of logits, and the position of the token to choose.
Line = tuple[Asked, int, int]


class Left(NamedTuple):
    """Who is left after some rules: the highest in order and, unless those are all, the row."""

    ids: Int32
    logits: Float32  # without the scale
    row: Float32 | None  # minus infinity for those who are out
    scale: float
    complete: bool  # the ids are everybody
    log_sum_exp: float  # of everybody


class Chooser(Protocol):
    """An op set that follows rules by itself. It may write to the logits, and leaves them as they were."""

    def choose(self, logits: Float32, lines: Sequence[Line], /) -> list[Chosen | None]:
        """A token for each of some rows of logits; None where nobody is left, or they are not finite. Each
        gets what it would have got alone."""

    def left(self, logits: Float32, summary: Summary, asked: Asked, count: int, /) -> Left:
        """Who is left of one row, whose summary the caller has, after the first `count` rules; by the same
        code. The head is the summary's, and the scale 1."""
