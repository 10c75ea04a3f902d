"""From the survivors to a token: the highest of logit plus luck, ties by lower id. Greedy has no luck.

Where the survivors are not all sorted, luck is computed for the sorted head and for every other token that
drew enough of it to matter, which the hash alone tells: the rest cannot win, nor come second.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from glassloop.decode.candidates import Candidates
from glassloop.decode.luck import hash_above, luck_key
from glassloop.decode.stage import Step
from glassloop.ops.vocabulary import Float64, Int32


@dataclass(frozen=True, slots=True)
class Choice:
    """The winner of one race. Scores are logit + luck."""

    id: int
    logit: float  # after the stages
    luck: float
    runner_up: int | None  # None where nobody else was left
    margin: float  # by how much the winner's score exceeds the runner-up's


def choose(candidates: Candidates, step: Step, with_luck: bool = True) -> Choice:
    """Without luck, the highest logit, whatever the temperature."""
    ids, logits, noise = race(candidates, step, with_luck)
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


def forced(candidates: Candidates, step: Step, token: int) -> Choice:
    """How a token that the caller chose fares in the race: by a negative margin where it would have lost."""
    won = choose(candidates, step)
    if won.id == token:
        return won
    asked = np.array([token], np.int32)
    logit = float(candidates.logits_of(asked)[0])
    noise = 0.0 if step.sampling.greedy else float(step.ops.luck_of(_key(step), asked)[0])
    return Choice(token, logit, noise, won.id, logit + noise - (won.logit + won.luck))


def race(candidates: Candidates, step: Step, with_luck: bool = True) -> tuple[Int32, Float64, Float64]:
    """Ids, logits and luck of every token that can win or come second."""
    if step.sampling.greedy or not with_luck:
        ids, logits = candidates.ids[:2], candidates.values[:2]
        return ids, logits, np.zeros(len(ids))
    key = _key(step)
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


def _key(step: Step) -> int:
    return luck_key(step.seed, step.salt, step.position)


def _best(ids: Int32, scores: Float64) -> int:
    place = int(scores.argmax())
    tied = scores == scores[place]
    if np.count_nonzero(tied) == 1:
        return place
    ties = np.flatnonzero(tied)
    return int(ties[ids[ties].argmin()])
