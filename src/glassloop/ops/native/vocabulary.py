"""The functions of `ops/vocabulary.py` in C: the same numbers, in a few microseconds a row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from glassloop.ops.native.library import library
from glassloop.ops.quant import Float32
from glassloop.ops.vocabulary import Float64, Int32, Summary

_CANDIDATE = np.dtype([("logit", "<f4"), ("id", "<i4")])


def summarize(logits: Float32, top: int) -> Summary:
    logits = np.ascontiguousarray(logits)
    found = np.empty(min(top, len(logits)), _CANDIDATE)
    sums = np.zeros(2)
    finite = library().gl_summarize(
        logits.ctypes.data, len(logits), len(found), found.ctypes.data, sums.ctypes.data
    )
    if not finite:
        return Summary(np.empty(0, np.int32), np.empty(0, np.float32), float(logits.max()), 0.0, False)
    return Summary(found["id"].copy(), found["logit"].copy(), float(sums[0]), float(sums[1]), True)


def summarize_rows(logits: Float32, top: int) -> list[Summary]:
    return [summarize(row, top) for row in logits]


def highest(logits: Float32, top: int) -> tuple[Int32, Float32]:
    logits = np.ascontiguousarray(logits)
    found = np.empty(min(top, len(logits)), _CANDIDATE)
    library().gl_highest(logits.ctypes.data, len(logits), len(found), found.ctypes.data)
    return found["id"].copy(), found["logit"].copy()


def log_sum_exp(logits: Float32, scale: float) -> float:
    logits = np.ascontiguousarray(logits)
    return float(library().gl_log_sum_exp(logits.ctypes.data, len(logits), scale))


def rank_of(logits: Float32, token: int) -> int:
    logits = np.ascontiguousarray(logits)
    return int(library().gl_rank_of(logits.ctypes.data, len(logits), token))


def lucky_ids(key: int, count: int, threshold: int) -> Int32:
    room = 64  # few are that lucky; when more are, once more with room for all
    while True:
        ids = np.empty(room, np.int32)
        found = library().gl_lucky_ids(key, count, threshold, ids.ctypes.data, room)
        if found <= room:
            return ids[:found]
        room = found


def luck_of(key: int, ids: NDArray[np.integer]) -> Float64:
    wide = np.ascontiguousarray(ids, np.int64)
    luck = np.empty(len(wide))
    library().gl_luck_of(key, wide.ctypes.data, len(wide), luck.ctypes.data)
    return luck
