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
    place: int  # among the racers: in the sorted head, if it is less than that is long
    logit: float  # after the stages
    luck: float
    runner_up: int | None  # None where nobody else was left
    margin: float  # by how much the winner's score exceeds the runner-up's


def choose(candidates: Candidates, step: Step, with_luck: bool = True) -> Choice:
    """Without luck, the highest logit, whatever the temperature."""
    ids, logits, noise = race(candidates, step, with_luck)
    if len(ids) == 1:
        return Choice(int(ids[0]), 0, float(logits[0]), float(noise[0]), None, inf)
    first, second, margin = _first_two(ids, logits + noise)
    return Choice(int(ids[first]), first, float(logits[first]), float(noise[first]), int(ids[second]), margin)


def forced(candidates: Candidates, step: Step, token: int) -> Choice:
    """How a token that the caller chose fares in the race: by a negative margin where it would have lost."""
    won = choose(candidates, step)
    if won.id == token:
        return won
    asked = np.array([token], np.int32)
    logit = float(candidates.logits_of(asked)[0])
    noise = 0.0 if step.sampling.greedy else float(step.ops.luck_of(_key(step), asked)[0])
    place = np.flatnonzero(candidates.ids == token)
    return Choice(
        token,
        int(place[0]) if len(place) else candidates.vocab_size,
        logit,
        noise,
        won.id,
        logit + noise - (won.logit + won.luck),
    )


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
    scores, last = logits + noise, float(logits[-1])
    scores[scores.argmax()] = -inf
    needed = float(scores.max()) - last
    lucky = step.ops.lucky_ids(key, candidates.vocab_size, hash_above(needed))
    theirs = candidates.logits_of(lucky)
    outside = (theirs <= last) & (theirs > -inf)
    lucky, theirs = lucky[outside], theirs[outside]
    if np.count_nonzero(theirs == last):  # some of those may be in the head
        outside = np.isin(lucky, ids, invert=True)
        lucky, theirs = lucky[outside], theirs[outside]
    if not len(lucky):
        return ids, logits, noise
    return (
        np.concatenate([ids, lucky]),
        np.concatenate([logits, theirs]),
        np.concatenate([noise, step.ops.luck_of(key, lucky)]),
    )


def _key(step: Step) -> int:
    return luck_key(step.seed, step.salt, step.position)


def _first_two(ids: Int32, scores: Float64) -> tuple[int, int, float]:
    """The places of the two highest scores, ties by lower id, and how far apart they are."""
    taken: list[tuple[int, float]] = []
    left = scores.copy()
    for _ in range(3):
        place = int(left.argmax())
        taken.append((place, float(left[place])))
        left[place] = -inf
    (first, best), (second, next_best), (_, third_best) = taken
    if best == next_best or next_best == third_best:  # only then the ids matter
        first, second = np.lexsort((ids, -scores))[:2].tolist()
    return first, second, best - next_best
