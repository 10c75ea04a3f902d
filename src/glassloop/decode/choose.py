"""From the survivors to a token: the highest of logit plus luck, ties by lower id. Greedy has no luck."""

from __future__ import annotations

from math import inf

import numpy as np

from glassloop.decode.candidates import Candidates
from glassloop.decode.luck import luck_key
from glassloop.decode.stage import Step
from glassloop.ops.vocabulary import Race


def choose(candidates: Candidates, step: Step, with_luck: bool = True) -> Race:
    """Without luck, the highest logit, whatever the temperature."""
    if with_luck and not step.sampling.greedy:
        return candidates.race(_key(step))
    ids, logits = candidates.ids[:2].tolist(), candidates.values[:2].tolist()
    if len(ids) == 1:
        return Race(ids[0], 0, logits[0], 0.0, None, inf)
    return Race(ids[0], 0, logits[0], 0.0, ids[1], logits[0] - logits[1])


def forced(candidates: Candidates, step: Step, token: int) -> Race:
    """How a token that the caller chose fares in the race: by a negative margin where it would have lost."""
    won = choose(candidates, step)
    if won.id == token:
        return won
    asked = np.array([token], np.int32)
    logit = float(candidates.logits_of(asked)[0])
    noise = 0.0 if step.sampling.greedy else float(step.ops.luck_of(_key(step), asked)[0])
    place = np.flatnonzero(candidates.ids == token)
    return Race(
        token,
        int(place[0]) if len(place) else candidates.vocab_size,
        logit,
        noise,
        won.id,
        logit + noise - (won.logit + won.luck),
    )


def _key(step: Step) -> int:
    return luck_key(step.seed, step.salt, step.position)
