"""The simplest KV cache: a few branches, each with a page table of its own and no shared pages.

Tests and benchmarks use it; the engine keeps its pages in a tree.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glassloop.model.transformer import Transformer
from glassloop.ops.batch import PAGE, Batch, pages_for
from glassloop.ops.quant import Float32


class Branches:
    def __init__(self, model: Transformer, tokens: int, branches: int = 1) -> None:
        """Allocates pages for `tokens` tokens in each of `branches` branches."""
        self._model = model
        self._each = pages_for(tokens)
        self.pages = model.ops.cache(model.cache_specs, self._each * branches * model.page_bytes)
        self._groups = len(self.pages)
        if model.cache_plan.states is not None:  # a slot for each border and each token
            pages = self._each * branches
            self.pages.append(model.ops.states(model.cache_plan.states, pages, pages * PAGE))
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
        if branch in self._tables:
            return self._tables[branch]
        number, each = len(self._tables), self._each
        size = each * self._groups
        table = np.arange(size * number, size * (number + 1), dtype=np.int32).reshape(self._groups, each)
        if len(self.pages) > self._groups:
            borders = np.arange(each * number, each * (number + 1), dtype=np.int32)
            rows = borders * PAGE + np.arange(PAGE, dtype=np.int32)[:, None]
            table = np.concatenate([table, borders[None], rows])
        self._tables[branch] = table
        return table
