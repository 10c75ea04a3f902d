"""The logits of known tokens: what the model said after each of them, computed between two steps of the loop.

It goes through the KV tree like everything else, so what is cached is not computed again, and what is
computed is there for the next who asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from glassloop.engine.loop import Loop
from glassloop.engine.scheduler import STEP_ROWS
from glassloop.engine.thread import EngineThread
from glassloop.engine.tree import NoRoom
from glassloop.errors import GlassloopError
from glassloop.ops.batch import Batch
from glassloop.ops.protocol import Forward
from glassloop.ops.quant import Float32

_SCORED = 32  # rows with logits at a time: they are as wide as the vocabulary


def logits_after(engine: EngineThread, ids: Sequence[int], first: int) -> Iterator[Float32]:
    """For each token from the place `first` on, the logits of the one to come after it.

    Others' steps come in between; nothing is held meanwhile.
    """
    for start in range(first, len(ids), _SCORED):
        stop = min(start + _SCORED, len(ids))
        yield from computed_after(engine, ids[:stop], start, engine.loop.transformer.forward)


def computed_after(engine: EngineThread, ids: Sequence[int], first: int, compute: Forward) -> Float32:
    """What `compute` gives for the tokens from the place `first` on, between two steps of the loop."""
    found: list[Float32] = []
    engine.call(lambda: found.append(_rows(engine.loop, ids, first, compute)))
    return found[0]


def _rows(loop: Loop, ids: Sequence[int], first: int, compute: Forward) -> Float32:
    tree = loop.tree
    path = tree.match(ids, first)
    try:
        while True:
            at = path.length
            # What only has to be in the cache comes first, in steps of the usual size.
            stop = len(ids) if at >= first or first - at < STEP_ROWS // 2 else min(first, at + STEP_ROWS // 2)
            chunk = list(ids[at:stop])
            tree.extend(path, chunk)
            wanted = max(0, stop - first)
            batch = Batch.of([(path.table, at, chunk)], [wanted])
            if stop == len(ids):
                found = np.array(compute(batch, tree.pages))  # the op set may use its buffer again
                tree.computed(path)
                return found
            loop.transformer.forward(batch, tree.pages)
            tree.computed(path)
    except NoRoom as error:
        raise GlassloopError(
            f"there is no room for {len(ids)} tokens beside what is running: {error}"
        ) from None
    finally:
        tree.release(path)
