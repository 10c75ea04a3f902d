"""The hidden states of a text, computed between the engine's steps, a few rows at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glassloop.engine.thread import EngineThread
from glassloop.model.cache import Branches
from glassloop.ops.quant import Float32

_ROWS = 128  # of one piece, as the scheduler has for prompts beside others


def mean_hidden(engine: EngineThread, tokens: Sequence[int]) -> Float32:
    """The mean of the last hidden states of all tokens, [dim]. It has pages of its own: a tree's pages may be
    computed without their hidden states having been looked at."""
    ids, transformer = list(tokens), engine.loop.transformer
    branches = Branches(transformer, len(ids))
    total = np.zeros(transformer.config.dim, np.float64)

    def piece(first: int) -> None:
        batch = branches.batch([(0, first, ids[first : first + _ROWS])], every_logit=True)
        total[:] += np.asarray(transformer.hidden(batch, branches.pages), np.float64).sum(axis=0)

    for first in range(0, len(ids), _ROWS):
        engine.call(lambda first=first: piece(first))  # type: ignore[misc]
    return (total / len(ids)).astype(np.float32)
