"""The functions of `ops/vocabulary.py` in C: the same numbers, in a few microseconds a row."""

from __future__ import annotations

from math import inf

import numpy as np
from numpy.typing import NDArray

from glassloop.ops.native import choosing
from glassloop.ops.native.library import address, library
from glassloop.ops.quant import Float32
from glassloop.ops.rules import Chooser, RuleError
from glassloop.ops.vocabulary import Float64, Int32, Race, Summary, check_token

chooser: Chooser = choosing


def summarize(logits: Float32, top: int) -> Summary:
    logits = _row(logits)
    top = min(top, len(logits))
    ids, best, sums = np.empty(top, np.int32), np.empty(top, np.float32), np.empty(2)
    done = library().gl_summarize(
        address(logits), len(logits), top, address(ids), address(best), address(sums)
    )
    if not done:
        raise MemoryError
    lse, entropy = sums.tolist()
    return Summary(ids, best, lse, entropy, lse == lse)  # NaN is not itself


def highest(logits: Float32, top: int) -> tuple[Int32, Float32]:
    logits = _row(logits)
    top = min(top, len(logits))
    ids, best = np.empty(top, np.int32), np.empty(top, np.float32)
    if not library().gl_highest(address(logits), len(logits), top, address(ids), address(best)):
        raise MemoryError
    return ids, best


def log_sum_exp(logits: Float32, scale: float) -> float:
    logits = _row(logits)
    return float(library().gl_log_sum_exp(address(logits), len(logits), scale))


def rank_of(logits: Float32, token: int) -> int:
    check_token(token, len(logits))
    logits = _row(logits)
    return int(library().gl_rank_of(address(logits), len(logits), token))


def race(key: int, ids: Int32, logits: Float64, row: Float32 | None, scale: float) -> Race:
    ids, logits = np.ascontiguousarray(ids, np.int32), np.ascontiguousarray(logits, np.float64)
    row = None if row is None else _row(row)
    if not len(ids) or len(ids) != len(logits):
        raise RuleError(
            f"{len(ids)} ids race with {len(logits)} logits; one or more, and as many, are expected"
        )
    places, winners, numbers = np.empty(2, np.int64), np.empty(2, np.int32), np.empty(4)
    done = library().gl_race(
        key,
        address(ids),
        address(logits),
        len(ids),
        None if row is None else address(row),
        0 if row is None else len(row),
        scale,
        address(places),
        address(winners),
        address(numbers),
    )
    if not done:
        raise MemoryError
    first, second = winners.tolist()
    logit, luck, other_logit, other_luck = numbers.tolist()
    if second < 0:
        return Race(first, int(places[0]), logit, luck, None, inf)
    return Race(first, int(places[0]), logit, luck, second, logit + luck - (other_logit + other_luck))


def _row(logits: Float32) -> Float32:
    """The same numbers, one after the other and in float32: what C reads."""
    return np.ascontiguousarray(logits, np.float32)


def luck_of(key: int, ids: NDArray[np.integer]) -> Float64:
    narrow = np.ascontiguousarray(ids, np.int32)
    luck = np.empty(len(narrow))
    library().gl_luck_of(key, address(narrow), len(narrow), address(luck))
    return luck
