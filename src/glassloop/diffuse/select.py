"""Which masked places a pass fills, and which filled ones are taken back. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from glassloop.decode.diffusion import Diffusion
from glassloop.decode.luck import luck

_ORDER, _RETAKE = 1 << 40, 1 << 41  # positions of draws that belong to no place of a text


class Belief(NamedTuple):
    """What the model's own distribution at a masked place says."""

    confidence: float  # the highest probability
    entropy: float  # in nats


def select(
    beliefs: Sequence[Belief], options: Diffusion, passes_left: int, seed: int = 0, salt: int = 0
) -> list[int]:
    """Returns the masked places that this pass fills, by their numbers in `beliefs`, in the order of filling.

    It fills one place at least, and as many as the passes that are left make necessary. The choice depends on
    the distributions alone and never on what is drawn from them: so filling one place at a time samples the
    joint distribution, if the conditional ones are those of one.
    """
    count = len(beliefs)
    least = -(-count // max(1, passes_left))
    most = options.most or count
    order = _ordered(beliefs, options, seed, salt)
    if options.order in ("left", "random"):
        taken = order[: options.most or 1]
    elif options.entropy is not None:
        taken = order[: _within(options.entropy, [beliefs[place].entropy for place in order])][:most]
    elif options.threshold is not None:
        taken = [place for place in order if beliefs[place].confidence >= options.threshold][:most]
    else:
        taken = order[: options.most or 1]
    return taken if len(taken) >= least else order[: max(1, least)]


def _ordered(beliefs: Sequence[Belief], options: Diffusion, seed: int, salt: int) -> list[int]:
    places = range(len(beliefs))
    if options.order == "left":
        return [*places]
    if options.order == "random":
        drawn = luck(seed, salt, _ORDER, np.arange(len(beliefs)))
        return sorted(places, key=lambda place: -drawn[place])
    if options.order == "entropy":
        return sorted(places, key=lambda place: beliefs[place].entropy)
    return sorted(places, key=lambda place: -beliefs[place].confidence)


def _within(bound: float, entropies: Sequence[float]) -> int:
    """Returns how many places can be filled at once: their joint entropy is at most the sum of theirs, and at
    least the highest one; the difference, which is what filling them at once can miss, stays in the bound."""
    total = largest = 0.0
    for number, entropy in enumerate(entropies):
        total, largest = total + entropy, max(largest, entropy)
        if number and total - largest > bound:
            return number
    return len(entropies)


def to_take_back(
    scores: Sequence[float], options: Diffusion, by_chance: bool, seed: int = 0, salt: int = 0
) -> list[int]:
    """Returns the places of a full block that are taken back. `scores` are high where a token is good.

    By chance, place i is drawn with a weight of exp(-score), as in ReMDM; else the lowest scores go.
    """
    count = max(1, round(options.retake * len(scores)))
    values = -np.array(scores)
    if by_chance:
        values = values + luck(seed, salt, _RETAKE, np.arange(len(scores)))
    return sorted(int(place) for place in np.argsort(-values, kind="stable")[:count])
