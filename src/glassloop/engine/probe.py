"""What the model says of a text that is known already: the logits after it, or its hidden states.

It is computed between the engine's steps, a few rows at a time, so nobody waits long for it. Nothing is held
from one piece to the next; what was computed stays in the KV tree as it does for every request.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glassloop.engine.thread import EngineThread
from glassloop.errors import GlassloopError
from glassloop.model.cache import Branches
from glassloop.ops.quant import Float32

_ROWS = 128  # of one piece, as the scheduler has for prompts beside others
_MOST_TRIES = 4  # times as many pieces as a text has, before we give up to whoever evicts them


def logits_after(engine: EngineThread, tokens: Sequence[int]) -> Float32:
    """The logits of the token that comes next, [vocabulary]: those that a run has seen there."""
    from glassloop.ops.batch import Batch

    ids, loop = list(tokens), engine.loop
    found: list[Float32] = []

    def piece() -> None:
        tree = loop.tree
        path = tree.match(ids, len(ids) - 1)
        try:
            first = path.length
            rows = ids[first : first + _ROWS]
            tree.extend(path, rows)
            is_last = first + len(rows) == len(ids)
            batch = Batch.of([(path.table, first, rows)], [1 if is_last else 0])
            logits = loop.transformer.forward(batch, tree.pages)
            tree.computed(path)
            if is_last:
                found.append(np.array(logits[0]))
        finally:
            tree.release(path)

    for _ in range(_MOST_TRIES * (1 + len(ids) // _ROWS)):
        engine.call(piece)
        if found:
            return found[0]
    raise GlassloopError("there is no room for this text's keys and values beside what runs now; try later")


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
