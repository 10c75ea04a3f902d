"""The simplest KV cache: a few branches, each with a page table of its own and no shared pages.

Tests and benchmarks use it; the engine keeps its pages in a tree.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glassloop.model.transformer import Transformer
from glassloop.ops.batch import Batch, pages_for
from glassloop.ops.quant import Float32


class Branches:
    def __init__(self, model: Transformer, tokens: int, branches: int = 1) -> None:
        """Allocates pages for `tokens` tokens in each of `branches` branches."""
        self._model = model
        self._each = pages_for(tokens)
        self.pages = model.ops.cache(model.cache_specs, self._each * branches * model.page_bytes)
        self._tables: dict[int, np.ndarray] = {}

    def forward(
        self,
        work: Sequence[tuple[int, int, Sequence[int]]],
        every_logit: bool = False,
        adapters: Sequence[int] = (),
    ) -> Float32:
        """Returns the logits of work given as (branch, first position, tokens), on the host. `adapters` has
        the number of the adapter of each row."""
        batch = self.batch(work, every_logit)._replace(adapters=list(adapters))
        return self._model.ops.host(self._model.forward(batch, self.pages))

    def batch(self, work: Sequence[tuple[int, int, Sequence[int]]], every_logit: bool = False) -> Batch:
        wanted = [len(ids) if every_logit else 1 for _, _, ids in work]
        return Batch.of([(self._table(branch), first, ids) for branch, first, ids in work], wanted)

    def _table(self, branch: int) -> np.ndarray:
        """Returns the page table of a branch; a new branch gets the next free pages."""
        size = self._each * len(self.pages)
        pages = np.arange(size * len(self._tables), size * (len(self._tables) + 1), dtype=np.int32)
        return self._tables.setdefault(branch, pages.reshape(len(self.pages), -1))
