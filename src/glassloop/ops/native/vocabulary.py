"""The functions of `ops/vocabulary.py` in C: the same numbers, in a few microseconds a row."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, c_char
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassloop.ops.native.library import library
from glassloop.ops.quant import Float32
from glassloop.ops.vocabulary import Float64, Int32, Race, Summary


def _address(array: NDArray[Any]) -> int:
    try:
        return addressof(c_char.from_buffer(array))  # type: ignore[arg-type]  # a third of the time of the other
    except (TypeError, ValueError):  # not to be written to, not in one piece, or empty
        return int(array.ctypes.data)


def summarize(logits: Float32, top: int, scale: float = 1.0) -> Summary:
    return summarize_rows(logits[np.newaxis], top, [scale])[0]


def summarize_rows(logits: Float32, top: int, scales: Sequence[float] | None = None) -> list[Summary]:
    rows, width = logits.shape
    if logits.strides[1] != 4:
        logits = np.ascontiguousarray(logits)
    top = min(top, width)
    ids, best, sums = np.empty((rows, top), np.int32), np.empty((rows, top), np.float32), np.empty((rows, 3))
    scales = scales or [1.0] * rows
    factors = np.array(scales, np.float64)
    library().gl_summarize(
        _address(logits),
        rows,
        logits.strides[0] // 4,
        width,
        top,
        _address(factors),
        _address(ids),
        _address(best),
        _address(sums),
    )
    return [
        Summary(ids[row], best[row], lse, entropy, lse == lse, scales[row], scaled)  # NaN is not itself
        for row, (lse, entropy, scaled) in enumerate(sums.tolist())
    ]


def highest(logits: Float32, top: int) -> tuple[Int32, Float32]:
    logits = np.ascontiguousarray(logits)
    top = min(top, len(logits))
    ids, best = np.empty(top, np.int32), np.empty(top, np.float32)
    library().gl_highest(_address(logits), len(logits), top, _address(ids), _address(best))
    return ids, best


def ranked(logits: Float32, ids: Int32, above: float) -> tuple[Int32, Float32]:
    found, values = np.empty(len(ids), np.int32), np.empty(len(ids), np.float32)
    count = library().gl_ranked(
        _address(logits), _address(ids), len(ids), above, _address(found), _address(values)
    )
    return found[:count], values[:count]


def log_sum_exp(logits: Float32, scale: float) -> float:
    logits = np.ascontiguousarray(logits)
    return float(library().gl_log_sum_exp(_address(logits), len(logits), scale))


def rank_of(logits: Float32, token: int) -> int:
    logits = np.ascontiguousarray(logits)
    return int(library().gl_rank_of(_address(logits), len(logits), token))


def race(key: int, ids: Int32, logits: Float64, row: Float32 | None, scale: float) -> Race:
    ids, logits = np.ascontiguousarray(ids, np.int32), np.ascontiguousarray(logits, np.float64)
    row = None if row is None else np.ascontiguousarray(row)
    places, winners, numbers = np.empty(2, np.int64), np.empty(2, np.int32), np.empty(4)
    library().gl_race(
        key,
        _address(ids),
        _address(logits),
        len(ids),
        None if row is None else _address(row),
        0 if row is None else len(row),
        scale,
        _address(places),
        _address(winners),
        _address(numbers),
    )
    first, second = winners.tolist()
    logit, luck, other_logit, other_luck = numbers.tolist()
    if second < 0:
        return Race(first, int(places[0]), logit, luck, None, inf)
    return Race(first, int(places[0]), logit, luck, second, logit + luck - (other_logit + other_luck))


def luck_of(key: int, ids: NDArray[np.integer]) -> Float64:
    narrow = np.ascontiguousarray(ids, np.int32)
    luck = np.empty(len(narrow))
    library().gl_luck_of(key, _address(narrow), len(narrow), _address(luck))
    return luck
