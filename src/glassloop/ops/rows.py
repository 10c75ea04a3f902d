"""Functions over one row of logits, as wide as the vocabulary. This module is their definition, in NumPy, and
what the reference op set has as `Ops.rows`; other op sets have faster ones.

A logit may be minus infinity (the token is excluded); `summarize` detects NaN and plus infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from glassloop.errors import GlassloopError
from glassloop.ops.quant import Float32

Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]


class RuleError(GlassloopError):
    """A rule or a request that does not fit the row of logits. Nothing was changed."""


class RowSummary(NamedTuple):
    ids: Int32  # [top] the highest logits, descending, ties by lower id
    logits: Float32  # [top]
    log_sum_exp: float
    entropy: float  # in nats
    finite: bool  # False if a logit is NaN or plus infinity; then no other field is meaningful


class Survivors(NamedTuple):
    """The tokens that some rules have left: the highest in order and, unless these are all, the whole row."""

    ids: Int32
    logits: Float32  # without the scale
    row: Float32 | None  # minus infinity for removed tokens
    scale: float
    complete: bool  # whether the ids are all survivors
    log_sum_exp: float  # over all survivors


class RowRules(Protocol):
    """How a token is to be chosen from a row: `decode/rules.py` implements it."""

    prepared: Any  # for the op set to keep what it has made of the request

    @property
    def head(self) -> int: ...
    @property
    def scale(self) -> float: ...
    @property
    def rules(self) -> Sequence[tuple[int, float, NDArray[Any] | None, Float64 | None]]: ...
    @property
    def branch_key(self) -> int | None: ...
    @property
    def alternatives(self) -> int: ...


# A request, the row of logits that it is for, and the position of the token to choose.
Line = tuple[RowRules, int, int]


class Chooser(Protocol):
    """The part of an op set that chooses tokens by itself: it follows the rules of `decode/rules.py` and
    writes the records of `decode/chosen.py`, which define both. It may change the logits during a call and
    restores them at its end."""

    @property
    def layout(self) -> Mapping[str, int]:
        """The numbers of the actions and the sizes and offsets of the record that were compiled in, by name.
        Decoding compares them with its own. Empty if the op set takes them from decoding."""

    @property
    def follows_whole_rows(self) -> bool:
        """Whether it follows the rules about a whole row, from `Action.TYPICAL` on."""

    def choose(
        self, logits: NDArray[Any], lines: Sequence[Line], record: np.dtype[np.void], /
    ) -> bytes | bytearray:
        """Chooses a token for each line. Returns a record of the given type for each, one after another. The
        id is -1 if no token is left or the logits are not finite. Raises `RuleError` if a rule does not fit.

        A line's record does not depend on the others.
        """

    def survivors(self, logits: Float32, summary: RowSummary, request: RowRules, count: int, /) -> Survivors:
        """Returns what the first `count` rules leave of one row, whose summary the caller has. The head of
        the request is that of the summary, and its scale is 1."""

    def race(
        self, key: int, ids: Int32, logits: Float64, row: Float32 | None, scale: float, /
    ) -> tuple[int, int, float, float, int | None, float]:
        """Returns the fields of a `Race`, as `decode/luck.py:race` does."""

    def luck_of(self, key: int, ids: NDArray[np.integer], /) -> Float64:
        """Returns the luck of each id, as `decode/luck.py:luck_of` does."""


class Started(Protocol):
    """Choices that a device has begun to make. It may compute another batch before they are finished, in
    which a row has the token that it predicts for a line (`Batch.after`)."""

    def finish(self, record: np.dtype[np.void], /) -> tuple[bytes | bytearray, Sequence[int]]:
        """Waits for the choices. Returns what `Chooser.choose` does, and the token that the device predicted
        for each line. A prediction may be wrong: the record says what was chosen."""


class RowOps(Protocol):
    """An op set's functions over rows of logits. A row is one of the op set's arrays or a NumPy array."""

    @property
    def start(self) -> Callable[[Any, Sequence[Line]], Started] | None:
        """Begins to choose a token for each line, or None if the op set computes nothing beside the host."""

    @property
    def chooser(self) -> Chooser | None:
        """The op set's chooser, or None if decoding has to run the stages one by one."""

    def host(self, row: Any, /) -> Float32: ...

    def summarize(self, logits: Float32, top: int, /) -> RowSummary: ...

    def highest(self, logits: Float32, top: int, /) -> tuple[Int32, Float32]: ...

    def log_sum_exp(self, logits: Float32, scale: float, /) -> float: ...

    def rank_of(self, logits: Float32, token: int, /) -> int: ...


chooser: Chooser | None = None
start: Callable[[Any, Sequence[Line]], Started] | None = None


def host(row: Float32) -> Float32:
    """Returns a row or rows as a NumPy array."""
    return row


def summarize(logits: Float32, top: int) -> RowSummary:
    """Returns the `top` highest logits (or all), and log-sum-exp and entropy over all in float64."""
    peak = float(logits.max())
    if not peak < np.inf:  # NaN, or plus infinity
        return RowSummary(np.empty(0, np.int32), np.empty(0, np.float32), peak, 0.0, False)
    ids, best = highest(logits, top)
    if peak == -np.inf:
        return RowSummary(ids, best, peak, 0.0, True)
    shifted = logits.astype(np.float64) - peak
    weights = np.exp(shifted)
    total = float(weights.sum())
    shifted[weights == 0] = 0.0  # minus infinity times 0 counts as 0
    log_total = float(np.log(total))
    entropy = log_total - float(weights @ shifted) / total
    return RowSummary(ids, best, peak + log_total, entropy, True)


def highest(logits: Float32, top: int) -> tuple[Int32, Float32]:
    """Returns ids and values of the `top` highest logits, ties by lower id. There must be no NaN."""
    if top < len(logits):
        border = np.partition(logits, len(logits) - top)[len(logits) - top]
        above = np.flatnonzero(logits > border)
        ids = np.concatenate([above, np.flatnonzero(logits == border)[: top - len(above)]])
    else:
        ids = np.arange(len(logits))
    ids = ids[np.lexsort((ids, -logits[ids]))].astype(np.int32)
    return ids, logits[ids]


def log_sum_exp(logits: Float32, scale: float) -> float:
    """Returns log Σ exp(logit · scale) in float64: minus infinity if all logits are. `scale` is positive."""
    peak = float(logits.max())
    if peak == -np.inf:
        return peak
    return peak * scale + float(np.log(np.exp((logits.astype(np.float64) - peak) * scale).sum()))


def check_token(token: int, width: int) -> None:
    if not 0 <= token < width:
        raise IndexError(f"token is {token}; an id from 0 to {width - 1} is expected")


def rank_of(logits: Float32, token: int) -> int:
    """Returns how many logits are higher, or equal with a lower id."""
    check_token(token, len(logits))
    own_logit = logits[token]
    return int(np.count_nonzero(logits > own_logit)) + int(np.count_nonzero(logits[:token] == own_logit))
