"""From the survivors to a token: the highest of logit plus luck, ties by lower id. Greedy has no luck.

Where the survivors are not all sorted, luck is computed for the sorted head and for every other token that
drew enough of it to matter, which the hash alone tells: the rest cannot win, nor come second.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np

from glassloop.decode.candidates import Candidates
from glassloop.decode.luck import hash_above, luck_key
from glassloop.decode.stage import Step
from glassloop.ops.vocabulary import Float64, Int32


class Choice(NamedTuple):
    """The winner of one race. Scores are logit + luck."""

    id: int
    logit: float  # after the stages
    luck: float
    runner_up: int | None  # None where nobody else was left
    margin: float  # by how much the winner's score exceeds the runner-up's


def choose(candidates: Candidates, step: Step) -> Choice:
    ids, logits, noise = race(candidates, step)
    scores = logits + noise
    # Only a tie needs the ids, but ties are where the order of the head must not show.
    first = _best(ids, scores)
    if len(ids) == 1:
        return Choice(int(ids[0]), float(logits[0]), float(noise[0]), None, inf)
    best = float(scores[first])
    scores[first] = -inf
    second = _best(ids, scores)
    return Choice(
        int(ids[first]),
        float(logits[first]),
        float(noise[first]),
        int(ids[second]),
        best - float(scores[second]),
    )


def race(candidates: Candidates, step: Step) -> tuple[Int32, Float64, Float64]:
    """Ids, logits and luck of every token that can win or come second."""
    if step.sampling.greedy:
        ids, logits = candidates.ids[:2], candidates.values[:2]
        return ids, logits, np.zeros(len(ids))
    key = luck_key(step.seed, step.salt, step.position)
    ids, logits = candidates.ids, candidates.values
    noise = step.ops.luck_of(key, ids)
    if candidates.complete:
        return ids, logits, noise
    # Nobody outside the head has a logit above its last, so who would beat the second of the head needs
    # more luck than lies between the two.
    second = float(np.partition(logits + noise, -2)[-2])
    needed = second - float(logits[-1])
    head = set(ids.tolist())
    lucky = step.ops.lucky_ids(key, candidates.vocab_size, hash_above(needed)).tolist()
    outside = np.array([token for token in lucky if token not in head], np.int32)
    theirs = candidates.logits_of(outside)
    outside, theirs = outside[theirs > -inf], theirs[theirs > -inf]
    if not len(outside):
        return ids, logits, noise
    return (
        np.concatenate([ids, outside]),
        np.concatenate([logits, theirs]),
        np.concatenate([noise, step.ops.luck_of(key, outside)]),
    )


def _best(ids: Int32, scores: Float64) -> int:
    place = int(scores.argmax())
    tied = scores == scores[place]
    if np.count_nonzero(tied) == 1:
        return place
    ties = np.flatnonzero(tied)
    return int(ties[ids[ties].argmin()])
