"""The embedding of a text: one vector, from the hidden states that the language head reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glassloop.engine.deadline import Deadline
from glassloop.engine.logits import read
from glassloop.engine.tasks.task import RowProgram
from glassloop.engine.thread import EngineThread
from glassloop.ops.quant import Float32

_SUMMED = 128  # rows that are added up before they are added to the rest


def mean_hidden(engine: EngineThread, ids: Sequence[int], deadline: Deadline | None = None) -> Float32:
    """Returns the mean of the last hidden states of all tokens, [dim]. Every token is computed, whatever is
    cached: keys and values are kept, hidden states are not."""
    transformer = engine.loop.transformer
    mean = _Mean(transformer.config.dim)
    read(engine, ids, 0, mean.add, RowProgram(transformer.hidden, together=True), deadline)
    return mean.result()


class _Mean:
    """The mean of rows. They are added up in blocks of the same rows in whatever pieces they come, so every
    bit of the result is the same."""

    def __init__(self, dim: int) -> None:
        self._total = np.zeros(dim, np.float64)
        self._block = np.empty((_SUMMED, dim), np.float32)
        self._filled = 0
        self._rows = 0

    def add(self, rows: Float32) -> None:
        while len(rows):
            taken = rows[: _SUMMED - self._filled]
            self._block[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            if self._filled == _SUMMED:
                self._empty()
            rows = rows[len(taken) :]

    def result(self) -> Float32:
        self._empty()
        return (self._total / self._rows).astype(np.float32)

    def _empty(self) -> None:
        self._total += self._block[: self._filled].astype(np.float64).sum(axis=0)
        self._rows += self._filled
        self._filled = 0
