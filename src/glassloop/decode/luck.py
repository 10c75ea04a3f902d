"""Luck: the noise of a draw, as a pure function of (seed, salt, position, token id).

There is no generator and no state, so other requests cannot affect a draw, and it can be repeated at any
time. A token is drawn as argmax(log p + luck) with luck from the Gumbel distribution, which picks each token
with its probability: the race. docs/luck.md specifies all of it. An op set may have luck and race in C; tests
hold the two equal.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from glassloop.ops.exact import FIRST, GOLDEN, SECOND, log_normal, mix
from glassloop.ops.quant import Float32
from glassloop.ops.rows import Float64, Int32

_MASK = (1 << 64) - 1
_COIN = np.array([0xFFFFFFFF])  # an id that no vocabulary has, for draws that belong to no token


# ── keys ───────────────────────────────────────────────────────────────────────────────────────────────────


def luck_key(seed: int, salt: int, position: int) -> int:
    """Returns the key of one draw: 64 bits that determine every token's luck."""
    return mix((branch_key(seed, salt) + GOLDEN + position) & _MASK)


@lru_cache(1024)
def branch_key(seed: int, salt: int) -> int:
    """Returns the key that the keys of all draws of a branch are made from."""
    key = mix((GOLDEN + seed) & _MASK)
    return mix((key + GOLDEN + salt) & _MASK)


def fork_salt(salt: int, position: int, ordinal: int) -> int:
    """Returns the salt of fork number `ordinal` (from 1) at a position of the branch with this salt."""
    key = mix((salt + GOLDEN) & _MASK)
    key = mix((key + GOLDEN + position) & _MASK)
    return mix((key + GOLDEN + ordinal) & _MASK)


def pass_salt(salt: int, number: int) -> int:
    """Returns the salt of pass `number` (from 0) of a branch that is filled in passes: its luck is keyed by
    (seed, position, pass)."""
    key = mix((salt + GOLDEN) & _MASK)
    return mix((key + GOLDEN + number) & _MASK)


def list_seed(seed: int, number: int) -> int:
    """Returns the seed of prompt `number` (from 0) of a list for which one seed was given. The first prompt
    has that seed itself; the others have 53 bits, which JSON readers that have only doubles keep exactly."""
    return branch_key(seed, number) >> 11 if number else seed


# ── luck ───────────────────────────────────────────────────────────────────────────────────────────────────


def luck(seed: int, salt: int, position: int, ids: NDArray[np.integer]) -> Float64:
    """Returns Gumbel noise for each token id."""
    return luck_of(luck_key(seed, salt, position), ids)


def coin(seed: int, salt: int, position: int) -> float:
    """Returns a number between 0 and 1 for the draw as a whole, for stages that act by chance."""
    bits = int(hash_ids(luck_key(seed, salt, position), _COIN)[0]) >> 12
    return (bits + 0.5) * 2.0**-52


def hash_ids(key: int, ids: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Returns 64 random bits for each id: SplitMix64 with the state key + (id + 1) · GOLDEN."""
    x = np.uint64(key) + (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(SECOND)
    return x ^ (x >> np.uint64(31))


def luck_of(key: int, ids: NDArray[np.integer]) -> Float64:
    """Returns Gumbel noise for each id: -log(-log(u)), u = (the upper 52 bits of its hash + 1/2) / 2^52.

    Each operation is one IEEE double operation and `log_normal` is spelled out, so the value is the same to
    the last bit on every machine (C must be compiled without contraction to fused multiply-add).
    """
    uniform = ((hash_ids(key, ids) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return -log_normal(-log_normal(uniform))


# ── the race ───────────────────────────────────────────────────────────────────────────────────────────────


class Race(NamedTuple):
    """The result of a race. A score is logit + luck."""

    id: int  # the winner
    place: int  # of the winner among the ids that were given in order; their number if it is none of these
    logit: float
    luck: float
    runner_up: int | None  # None if there was only one candidate
    margin: float  # by how much the winner's score exceeds the runner-up's


def race(key: int, ids: Int32, logits: Float64, row: Float32 | None, scale: float) -> Race:
    """Returns the highest of logit + luck, ties by lower id.

    The candidates are the ids, with descending logits, and, if there is a row whose highest these are, all
    other tokens of the row that are not minus infinity, each logit times the scale.
    """
    count, racers = len(ids), ids
    if row is not None:
        others = np.setdiff1d(np.flatnonzero(row > -np.inf), ids).astype(np.int32)
        racers = np.concatenate([ids, others])
        logits = np.concatenate([logits, row[others].astype(np.float64) * scale])
    noise = luck_of(key, racers)
    scores = logits + noise
    order = np.lexsort((racers, -scores))
    first = int(order[0])
    second = int(order[1]) if len(order) > 1 else None
    return Race(
        int(racers[first]),
        min(first, count),
        float(logits[first]),
        float(noise[first]),
        None if second is None else int(racers[second]),
        np.inf if second is None else float(scores[first] - scores[second]),
    )
