"""Luck: the noise of a draw, as a pure function of (seed, salt, position, token id).

There is no generator and no state, so what else runs cannot matter and a draw can be repeated at any time.
A token is drawn as argmax(log p + luck) with luck from the Gumbel distribution, which picks each token with
its probability.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def _mix(x: int) -> int:
    """The finalizer of SplitMix64: a bijection on 64 bits in which every input bit moves every output bit."""
    x = ((x ^ (x >> 30)) * _FIRST) & _MASK
    x = ((x ^ (x >> 27)) * _SECOND) & _MASK
    return x ^ (x >> 31)


def hashes(seed: int, salt: int, position: int, ids: NDArray[np.integer]) -> NDArray[np.uint64]:
    """64 random bits for each token id."""
    key = 0
    for part in (seed, salt, position):
        key = _mix((key + _GOLDEN + part) & _MASK)
    x = np.uint64(key) + (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_SECOND)
    return x ^ (x >> np.uint64(31))


def luck(seed: int, salt: int, position: int, ids: NDArray[np.integer]) -> NDArray[np.float64]:
    """Gumbel noise for each token id."""
    # 53 bits, moved off 0 and 1 by half a step, so that both logarithms are finite.
    uniform = ((hashes(seed, salt, position, ids) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return -np.log(-np.log(uniform))
