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
    pages: Int32  # the branch's pages, from position 0 to at least `length`

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
    def of(work: Sequence[tuple[Int32, int, Sequence[int]]], every_logit: bool = False) -> Batch:
        """A batch from (pages, first position, tokens) of each branch.

        Logits are computed for the last token of each branch, or for every token.
        """
        spans: list[Span] = []
        tokens: list[int] = []
        positions: list[int] = []
        for pages, first, ids in work:
            spans.append(Span(len(tokens), len(tokens) + len(ids), first, pages))
            tokens.extend(ids)
            positions.extend(range(first, first + len(ids)))
        wanted = range(len(tokens)) if every_logit else [span.stop - 1 for span in spans]
        return Batch(
            np.array(tokens, np.int32),
            np.array(positions, np.int32),
            tuple(spans),
            np.array(wanted, np.int32),
        )


def pages_for(tokens: int) -> int:
    return -(-tokens // PAGE)
