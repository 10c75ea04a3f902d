"""A batch: the rows of one forward pass. Prefill, decode and verification of drafts are all just rows.

Each row is a token at a position of a branch. Rows of one branch stand together, in order of position, as a
`Span`; the keys and values of its tokens lie in pages of the cache, and the span says in which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]

PAGE = 32  # tokens in one page of the cache


class Span(NamedTuple):
    """Rows `start` to `stop` of a batch: the tokens of one branch from position `first` on."""

    start: int
    stop: int
    first: int
    pages: Int32  # [groups, n] the branch's pages, from position 0 to at least `length`

    @property
    def length(self) -> int:
        """How many tokens of the branch are known once this span is computed."""
        return self.first + self.stop - self.start


class Batch(NamedTuple):
    tokens: Int32  # [rows]
    positions: Int32  # [rows]
    spans: tuple[Span, ...]
    wanted: Int32  # the rows whose logits are asked for

    @staticmethod
    def of(work: Sequence[tuple[Int32, int, Sequence[int]]], wanted: Sequence[int] | None = None) -> Batch:
        """A batch from (pages, first position, tokens) of each branch.

        Logits are computed for so many of the last tokens of each branch, or for the last one.
        """
        spans: list[Span] = []
        tokens: list[int] = []
        positions: list[int] = []
        for pages, first, ids in work:
            spans.append(Span(len(tokens), len(tokens) + len(ids), first, pages))
            tokens.extend(ids)
            positions.extend(range(first, first + len(ids)))
        asked = [1] * len(spans) if wanted is None else wanted
        rows = [
            row for span, last in zip(spans, asked, strict=True) for row in range(span.stop - last, span.stop)
        ]
        return Batch(
            np.array(tokens, np.int32),
            np.array(positions, np.int32),
            tuple(spans),
            np.array(rows, np.int32),
        )


def pages_for(tokens: int) -> int:
    return -(-tokens // PAGE)
