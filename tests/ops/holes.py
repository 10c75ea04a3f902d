"""Texts with a hole: batches in which masked rows see all of their branch and clean rows stay causal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from glassloop.model.cache import Branches
from glassloop.ops.batch import Batch
from glassloop.ops.quant import Float32


class Hole(NamedTuple):
    """A text before, a text after and masks between them. The slots are in this order; positions are those of
    the text."""

    before: list[int]
    after: list[int]
    masks: list[int]

    @property
    def tokens(self) -> list[int]:
        return [*self.before, *self.after, *self.masks]

    @property
    def clean(self) -> int:
        return len(self.before) + len(self.after)

    @property
    def positions(self) -> list[int]:
        start, stop = len(self.before), len(self.before) + len(self.masks)
        return [*range(start), *range(stop, stop + len(self.after)), *range(start, stop)]

    def reach(self, slot: int) -> int:
        return len(self.tokens) if slot >= self.clean else slot + 1


def random_hole(rng: np.random.Generator, vocabulary: int, most: int) -> Hole:
    before, after, masks = (
        rng.integers(0, vocabulary, rng.integers(least, most)).tolist() for least in (0, 0, 1)
    )
    return Hole(before, after, masks)


Work = tuple[int, Hole, int, int]  # (branch, hole, first slot, end)


def hole_batch(
    cache: Branches, work: Sequence[Work], plain: Sequence[tuple[int, int, list[int]]] = ()
) -> Batch:
    """Returns a batch of slots of holes, beside plain rows given as (branch, first position, tokens)."""
    asked = [(branch, first, hole.tokens[first:end]) for branch, hole, first, end in work]
    batch = cache.batch([*asked, *plain], every_logit=True)
    places = [
        (hole.positions[slot], hole.reach(slot)) for _, hole, first, end in work for slot in range(first, end)
    ]
    places += [(at, at + 1) for _, first, ids in plain for at in range(first, first + len(ids))]
    return batch._replace(positions=[each[0] for each in places], reach=[each[1] for each in places])


def hole_logits(cache: Branches, model, work: Sequence[Work], plain=()) -> Float32:
    found: Float32 = model.ops.host(model.forward(hole_batch(cache, work, plain), cache.pages))
    return found


def hole_alone(model, hole: Hole) -> Float32:
    """Returns the logits of every slot, computed in one batch with nothing beside it."""
    return hole_logits(Branches(model, 96), model, [(0, hole, 0, len(hole.tokens))])
