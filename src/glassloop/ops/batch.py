"""A batch: the rows of one forward pass. Prefill, decode and verification of drafts are all just rows.

Each row is a token at a position of a branch. Rows of one branch stand together, in order of position, as a
`Span`; what the branch computed earlier is in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from glassloop.ops.quant import Float32

Int32 = NDArray[np.int32]


@dataclass(frozen=True)
class Span:
    """Rows `start` to `stop` of a batch: the tokens of one branch from position `first` on."""

    branch: int
    start: int
    stop: int
    first: int

    @property
    def length(self) -> int:
        """How many tokens of the branch are known once this span is computed."""
        return self.first + self.stop - self.start


@dataclass(frozen=True)
class Batch:
    tokens: Int32  # [rows]
    positions: Int32  # [rows]
    spans: tuple[Span, ...]
    wanted: Int32  # the rows whose logits are asked for

    @staticmethod
    def of(work: Sequence[tuple[int, int, Sequence[int]]], every_logit: bool = False) -> Batch:
        """A batch from (branch, first position, tokens) of each branch.

        Logits are computed for the last token of each branch, or for every token.
        """
        spans: list[Span] = []
        tokens: list[int] = []
        positions: list[int] = []
        for branch, first, ids in work:
            spans.append(Span(branch, len(tokens), len(tokens) + len(ids), first))
            tokens.extend(ids)
            positions.extend(range(first, first + len(ids)))
        wanted = range(len(tokens)) if every_logit else [span.stop - 1 for span in spans]
        return Batch(
            np.array(tokens, np.int32),
            np.array(positions, np.int32),
            tuple(spans),
            np.array(wanted, np.int32),
        )


class KVCache(Protocol):
    """Keys and values of every token computed so far, for each layer and branch."""

    def write(self, layer: int, batch: Batch, keys: Float32, values: Float32) -> None:
        """Keep the keys and values of the batch's rows, each [rows, kv heads, head dim]."""

    def read(self, layer: int, span: Span) -> tuple[Float32, Float32]:
        """Keys and values of the span's branch up to the span's end, each [length, kv heads, head dim]."""
        ...
