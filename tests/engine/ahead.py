"""An op set for tests that computes steps ahead of their commitment, as a device does: the native one, whose
predictions of tokens are wrong now and then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glassloop.decode.chosen import record_with
from glassloop.ops.batch import Batch
from glassloop.ops.native import chooser as native_chooser
from glassloop.ops.native import rows as native_rows
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.protocol import Forward
from glassloop.ops.quant import Float32
from glassloop.ops.rows import Line

_WRONG = 0.2  # share of the predictions


class Started:
    def __init__(self, logits: Float32, lines: Sequence[Line], rng: np.random.Generator) -> None:
        self._logits, self._lines = logits, lines
        record = record_with(max(request.alternatives for request, _, _ in lines))
        made = native_chooser.choose(logits, lines, record)
        ids = np.frombuffer(bytes(made), record)["id"].clip(0)
        wrong = rng.random(len(ids)) < _WRONG
        self.predicted = np.where(wrong, (ids + 1) % logits.shape[1], ids).tolist()

    def finish(self, record: np.dtype[np.void]) -> tuple[bytearray, list[int]]:
        return native_chooser.choose(self._logits, self._lines, record), self.predicted


class AheadRows:
    chooser = native_rows.chooser
    host = staticmethod(native_rows.host)
    summarize = staticmethod(native_rows.summarize)
    highest = staticmethod(native_rows.highest)
    log_sum_exp = staticmethod(native_rows.log_sum_exp)
    rank_of = staticmethod(native_rows.rank_of)

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def start(self, logits: Float32, lines: Sequence[Line]) -> Started:
        return Started(logits, lines, self._rng)


class AheadOps(NativeOps):
    def __init__(self) -> None:
        super().__init__()
        self.rows = AheadRows()  # type: ignore[assignment, misc]

    def program(self, compute: Forward, sizes: Sequence[int] = (), adapted: bool = False) -> Forward:
        run = super().program(compute, sizes, adapted)

        def named(batch: Batch, pages: Any) -> Any:
            tokens = [token if token >= 0 else batch.after.predicted[-1 - token] for token in batch.tokens]
            made = run(batch._replace(tokens=tokens), pages)
            return made if isinstance(made, list) else np.array(made)

        return named
