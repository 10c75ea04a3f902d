"""Luck: the noise of a draw, as a pure function of (seed, salt, position, token id).

There is no generator and no state, so what else runs cannot matter and a draw can be repeated at any time.
A token is drawn as argmax(log p + luck) with luck from the Gumbel distribution, which picks each token with
its probability. docs/luck.md specifies all of it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from glassloop.ops.vocabulary import FIRST, GOLDEN, SECOND, Float64, hash_ids, luck_of

_MASK = (1 << 64) - 1
_COIN = np.array([0xFFFFFFFF])  # an id that no vocabulary has, for draws that belong to no token


def mix(x: int) -> int:
    """The finalizer of SplitMix64: a bijection on 64 bits in which every input bit moves every output bit."""
    x = ((x ^ (x >> 30)) * FIRST) & _MASK
    x = ((x ^ (x >> 27)) * SECOND) & _MASK
    return x ^ (x >> 31)


def luck_key(seed: int, salt: int, position: int) -> int:
    """The key of one draw: 64 bits from which every token's luck follows."""
    return mix((branch_key(seed, salt) + GOLDEN + position) & _MASK)


@lru_cache(1024)
def branch_key(seed: int, salt: int) -> int:
    """What the keys of all draws of a branch come from."""
    key = mix((GOLDEN + seed) & _MASK)
    return mix((key + GOLDEN + salt) & _MASK)


def luck(seed: int, salt: int, position: int, ids: NDArray[np.integer]) -> Float64:
    """Gumbel noise for each token id."""
    return luck_of(luck_key(seed, salt, position), ids)


def coin(seed: int, salt: int, position: int) -> float:
    """A number between 0 and 1 for the draw as a whole: whether a stage that acts by chance acts here."""
    bits = int(hash_ids(luck_key(seed, salt, position), _COIN)[0]) >> 12
    return (bits + 0.5) * 2.0**-52


def fork_salt(salt: int, position: int, ordinal: int) -> int:
    """The salt of the fork number `ordinal` (from 1) made at a position of the branch with this salt."""
    key = mix((salt + GOLDEN) & _MASK)
    key = mix((key + GOLDEN + position) & _MASK)
    return mix((key + GOLDEN + ordinal) & _MASK)
