"""The plan of a call as plain data: what a worker needs that has the model and the pages, and nothing else.

A plan can be written to a file or sent to another process and computed there; the results have the same bits.
The tasks that wait for these results are kept beside it (`PlannedCall` in engine/tasks/task.py): the work
with the index i has the rows of the span with the index i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from glassloop.ops.batch import Batch
from glassloop.ops.kv_cache import Pages
from glassloop.ops.protocol import Forward, Output


class PageCopy(NamedTuple):
    """A page that two branches share, and of which one gets a copy that it can write to."""

    group: int  # of layers
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class CallPlan:
    """The rows of one call.

    The page tables of the batch are those of the branches, which change when the next step is planned:
    compute the plan, or pickle it, before.
    """

    copies: Sequence[PageCopy]  # made in this order before the rows are computed
    batch: Batch  # rows, positions, slots and page tables, wanted rows, adapters

    def compute(self, forward: Forward[Output], pages: Sequence[Pages]) -> Output:
        """Copies the pages and computes the rows. Returns what `forward` does: the logits of the wanted
        rows."""
        for group, source, target in self.copies:
            pages[group].copy(source, target)
        return forward(self.batch, pages)
