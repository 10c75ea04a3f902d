"""The temperatures at which the same token wins with the same luck.

A token beats a rival at temperature T if its lead in logits, divided by T, exceeds the rival's lead in luck.
So each rival with more luck sets a highest temperature, and each rival with a higher logit a lowest one.
"""

from __future__ import annotations

from math import ceil, floor, inf

import numpy as np

from glassloop.decode.candidates import Candidates
from glassloop.decode.chain import DEFAULT_ORDER
from glassloop.decode.luck import luck_key, luck_of
from glassloop.decode.stage import Stage, Step

_HIGHEST = 100  # the highest temperature that `Sampling` accepts


def winning_temperatures(
    left: Candidates, step: Step, chain: tuple[Stage, ...], winner: int
) -> tuple[float, float] | None:
    """Returns the lowest and highest temperature at which this winner stays the winner, in hundredths,
    rounded inwards. None if another temperature could leave other tokens, or if it is too close to tell."""
    order = tuple(step.sampling.stages or DEFAULT_ORDER)
    if "temperature" not in order:
        return None
    later = order[order.index("temperature") + 1 :]
    if any(stage.name in later and stage.name != "top_k" for stage in chain):
        return None  # the stage depends on probabilities; top-k depends on the order alone
    ids, logits = left.everyone()
    chooser = step.ops.chooser
    luck = (luck_of if chooser is None else chooser.luck_of)(
        luck_key(step.seed, step.salt, step.position), ids
    )
    winner_place = int(np.flatnonzero(ids == winner)[0])
    lead = (logits[winner_place] - logits) * step.sampling.temperature  # at temperature 1
    needed = luck - luck[winner_place]
    ahead, behind = (lead > 0) & (needed > 0), (lead < 0) & (needed < 0)
    coldest = 0.0 if left.ids[0] == winner else 0.01  # greedy decoding takes another of equal logits
    lowest = float((lead[behind] / needed[behind]).max(initial=coldest))
    highest = float((lead[ahead] / needed[ahead]).min(initial=inf))
    low, high = ceil(100 * lowest) / 100, inf if highest > _HIGHEST else floor(100 * highest) / 100
    return (low, high) if low <= step.sampling.temperature <= high else None
