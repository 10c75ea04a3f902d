"""The order of training data: a pure hash of (seed, epoch, index), as luck is one of (seed, position, token).

There is no generator and no state, so a run that is resumed at any step sees the same data as one that was
never stopped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from glassloop.decode.luck import hash_ids, luck_key

# What a hash is used for. Each use has hashes of its own.
DOCUMENTS, BLOCKS, SHIFT, DROPOUT, ON_POLICY = range(5)


def order(seed: int, epoch: int, use: int, count: int) -> NDArray[np.int64]:
    """Returns the numbers below `count` in the order of their hashes."""
    hashes = hash_ids(luck_key(seed, epoch, use), np.arange(count, dtype=np.int64))
    return np.argsort(hashes, kind="stable").astype(np.int64)


def number(seed: int, epoch: int, use: int, below: int) -> int:
    """Returns one hashed number below a bound."""
    return luck_key(seed, epoch, use) % below
