"""Which tokens of a text are wrong: surprise from the left, and from both sides.

From the left, a token's surprise is -log2 p(token | what comes before). From both sides it is how much less
likely the token is than the best of its rivals once what follows is counted too: a token that is unexpected
but right makes its continuation likely, and a wrong one does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log

import numpy as np

from glassloop.edit.proposal import EditWork, Place, Proposal, bits
from glassloop.record.run import Run

RIVALS = 4  # tokens that each token is compared with: those that the model finds likeliest there
_AT_ONCE = 64  # branches that are scored in one batch


@dataclass(eq=False)
class SurprisingToken:
    """The surprise of one token, and its rivals as proposals, scored."""

    place: Place
    left: float  # bits
    both: float  # bits
    proposals: list[Proposal]


def left_bits(run: Run) -> list[float]:
    """Returns the surprise of each token of a run given those before it."""
    return [bits(run, at, at + 1) for at in range(len(run.tokens))]


def measure(
    work: EditWork, run: Run, positions: Sequence[int], window: int, step: int, rivals: int = RIVALS
) -> Iterator[SurprisingToken]:
    """Yields the surprise from both sides of tokens of a run: -log2 of the probability of the token among
    its rivals, each with `window` tokens after it. The steps of the proposals count from `step`."""
    group = max(1, _AT_ONCE // rivals)
    for first in range(0, len(positions), group):
        places = [
            Place(run, at, at + 1, 1, step + first + number)
            for number, at in enumerate(positions[first : first + group])
        ]
        proposals = [work.alternatives(place, rivals) for place in places]
        work.score_all(places, proposals, window)
        for place, made in zip(places, proposals, strict=True):
            own = bits(run, place.start, place.start + 1)
            here = own + bits(run, place.end, place.end + window)
            others = [each.bits for each in made if each.run is not None]
            all_of_them = np.logaddexp.reduce([-each * log(2) for each in (here, *others)]) / log(2)
            yield SurprisingToken(place, own, here + float(all_of_them), made)
