"""Functions over one row of logits, as wide as the vocabulary: what decoding needs of every token there is.

They are few, small and exact, so that an op set can replace each by a loop of its own. A logit may be minus
infinity (the token is out of the question); NaN and plus infinity are told apart by `summarize`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from glassloop.ops.quant import Float32

if TYPE_CHECKING:
    from glassloop.ops.rules import Chooser

Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]

GOLDEN = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB

chooser: Chooser | None = None


class Summary(NamedTuple):
    ids: Int32  # [top] the highest logits, descending, ties by lower id
    logits: Float32  # [top]
    log_sum_exp: float
    entropy: float  # in nats
    finite: bool  # False where a logit is NaN or plus infinity: then nothing else here means anything


class Race(NamedTuple):
    """The winner of a race. Scores are logit + luck."""

    id: int
    place: int  # among the ids that were given in order, if it is less than there are
    logit: float
    luck: float
    runner_up: int | None  # None where nobody else was there
    margin: float  # by how much the winner's score exceeds the runner-up's


class RowOps(Protocol):
    """The functions of this module that an op set replaces; the module itself is the reference."""

    @property
    def chooser(self) -> Chooser | None:
        """Where the op set follows the rules of stages by itself."""

    def summarize(self, logits: Float32, top: int, /) -> Summary: ...

    def highest(self, logits: Float32, top: int, /) -> tuple[Int32, Float32]: ...

    def log_sum_exp(self, logits: Float32, scale: float, /) -> float: ...

    def rank_of(self, logits: Float32, token: int, /) -> int: ...

    def race(self, key: int, ids: Int32, logits: Float64, row: Float32 | None, scale: float, /) -> Race: ...

    def luck_of(self, key: int, ids: NDArray[np.integer], /) -> Float64: ...


def row_ops(op_set: str) -> RowOps:
    """The functions that go with an op set, by its name."""
    if op_set == "native":
        from glassloop.ops.native import vocabulary as native

        return native
    return sys.modules[__name__]


def summarize(logits: Float32, top: int) -> Summary:
    """The `top` highest logits (fewer if the vocabulary is smaller), and log-sum-exp and entropy over all of
    them in float64."""
    peak = float(logits.max())
    if not peak < np.inf:  # NaN, or plus infinity
        return Summary(np.empty(0, np.int32), np.empty(0, np.float32), peak, 0.0, False)
    ids, best = highest(logits, top)
    if peak == -np.inf:
        return Summary(ids, best, peak, 0.0, True)
    shifted = logits.astype(np.float64) - peak
    weights = np.exp(shifted)
    total = float(weights.sum())
    shifted[weights == 0] = 0.0  # minus infinity times nothing is nothing
    log_total = float(np.log(total))
    entropy = log_total - float(weights @ shifted) / total
    return Summary(ids, best, peak + log_total, entropy, True)


def highest(logits: Float32, top: int) -> tuple[Int32, Float32]:
    """The `top` highest logits with their ids, descending, ties by lower id. None of them may be NaN."""
    if top < len(logits):
        border = np.partition(logits, len(logits) - top)[len(logits) - top]
        above = np.flatnonzero(logits > border)
        ids = np.concatenate([above, np.flatnonzero(logits == border)[: top - len(above)]])
    else:
        ids = np.arange(len(logits))
    ids = ids[np.lexsort((ids, -logits[ids]))].astype(np.int32)
    return ids, logits[ids]


def log_sum_exp(logits: Float32, scale: float) -> float:
    """log Σ exp(logit · scale), in float64; minus infinity for a row of nothing else. `scale` is positive."""
    peak = float(logits.max())
    if peak == -np.inf:
        return peak
    return peak * scale + float(np.log(np.exp((logits.astype(np.float64) - peak) * scale).sum()))


def check_token(token: int, width: int) -> None:
    if not 0 <= token < width:
        raise IndexError(f"token is {token}; an id from 0 to {width - 1} is expected")


def rank_of(logits: Float32, token: int) -> int:
    """How many logits are higher, or as high with a lower id."""
    check_token(token, len(logits))
    mine = logits[token]
    return int(np.count_nonzero(logits > mine)) + int(np.count_nonzero(logits[:token] == mine))


# ── luck: specified in docs/luck.md ────────────────────────────────────────────────────────────────────────


def hash_ids(key: int, ids: NDArray[np.integer]) -> NDArray[np.uint64]:
    """64 random bits for each id under a 64-bit key: SplitMix64, its state key + (id + 1) · GOLDEN."""
    x = np.uint64(key) + (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(SECOND)
    return x ^ (x >> np.uint64(31))


def race(key: int, ids: Int32, logits: Float64, row: Float32 | None, scale: float) -> Race:
    """The highest of logit + luck, ties by lower id: among ids with descending logits or, if there is a row
    of which they are the highest, among all of it that is not minus infinity, each logit times the scale."""
    known, racers = len(ids), ids
    if row is not None:
        others = np.setdiff1d(np.flatnonzero(row > -np.inf), ids).astype(np.int32)
        racers = np.concatenate([ids, others])
        logits = np.concatenate([logits, row[others].astype(np.float64) * scale])
    luck = luck_of(key, racers)
    scores = logits + luck
    order = np.lexsort((racers, -scores))
    first = int(order[0])
    second = int(order[1]) if len(order) > 1 else None
    return Race(
        int(racers[first]),
        first if first < known else known,
        float(logits[first]),
        float(luck[first]),
        None if second is None else int(racers[second]),
        np.inf if second is None else float(scores[first] - scores[second]),
    )


def luck_of(key: int, ids: NDArray[np.integer]) -> Float64:
    """Gumbel noise for each id: -log(-log(u)), u = (the upper 52 bits of its hash + 1/2) / 2^52.

    Each operation is one IEEE double operation and `_log` is spelled out, so the value is the same to the
    last bit on every machine (C must be compiled without contraction to fused multiply-add).
    """
    uniform = ((hash_ids(key, ids) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return -_log(-_log(uniform))


def _log(x: Float64) -> Float64:
    """The natural logarithm of normal positive numbers, by the method and constants of fdlibm's `log`."""
    fraction, exponent = np.frexp(x)  # x = fraction · 2^exponent, fraction from 1/2 to 1
    low = fraction < 0.7071067811865476
    f = np.where(low, fraction + fraction, fraction) - 1.0  # 1 + f lies between √½ and √2
    k = (exponent - low).astype(np.float64)
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    odd = z * (
        6.666666666666735130e-01
        + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01))
    )
    half = 0.5 * f * f
    r: Float64 = k * 6.93147180369123816490e-01 - (
        (half - (s * (half + (even + odd)) + k * 1.90821492927058770002e-10)) - f
    )
    return r
