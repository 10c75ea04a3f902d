"""From the survivors to a token: the highest of logit plus luck, ties by lower id. Greedy has no luck."""

from __future__ import annotations

from math import inf

import numpy as np

from glassloop.decode.candidates import Candidates
from glassloop.decode.luck import Race, luck_key, luck_of
from glassloop.decode.stage import Step


def pick_winner(candidates: Candidates, step: Step, with_luck: bool = True) -> Race:
    """Runs the race. Without luck, the highest logit wins, whatever the temperature."""
    if with_luck and not step.sampling.greedy:
        return candidates.race(luck_key(step.seed, step.salt, step.position))
    ids, logits = candidates.ids[:2].tolist(), candidates.values[:2].tolist()
    if len(ids) == 1:
        return Race(ids[0], 0, logits[0], 0.0, None, inf)
    return Race(ids[0], 0, logits[0], 0.0, ids[1], logits[0] - logits[1])


def race_of_forced(candidates: Candidates, step: Step, token: int) -> Race:
    """Returns the race of a forced token: its margin is negative if it would have lost."""
    won = pick_winner(candidates, step)
    if won.id == token:
        return won
    ids = np.array([token], np.int32)
    logit, noise = float(candidates.logits_of(ids)[0]), 0.0
    if not step.sampling.greedy:
        noise = float(luck_of(luck_key(step.seed, step.salt, step.position), ids)[0])
    place = np.flatnonzero(candidates.ids == token)
    return Race(
        token,
        int(place[0]) if len(place) else candidates.vocab_size,
        logit,
        noise,
        won.id,
        logit + noise - (won.logit + won.luck),
    )


def race_of_found(candidates: Candidates, token: int) -> Race:
    """Returns the race of a token that a beam search found: it has no luck and no runner-up."""
    logit = float(candidates.logits_of(np.array([token]))[0])
    return Race(token, len(candidates.ids), logit, 0.0, None, 0.0)
