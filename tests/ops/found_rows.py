"""What a device finds in rows of logits, written out in NumPy: the pieces of memory from which
`gl_choose_found` chooses. The kernels of the torch op set find the same."""

from __future__ import annotations

from ctypes import sizeof
from typing import Any

import numpy as np
from ops.fused import fused

from glassloop.decode.luck import luck_of
from glassloop.decode.rules import Action, RowRequest, Rule
from glassloop.ops.exact import GOLDEN, mix
from glassloop.ops.native import library as lib
from glassloop.ops.quant import Float32

_GROUPS, _PART = 1024, 4096
_SERIES = (
    *(7.072585949269223e-09, 1.0208690299958306e-07, 1.321544258792169e-06, 1.5252657260200837e-05),
    *(0.0001540353044173605, 0.0013333558230164974, 0.009618129107606888, 0.05550410866444772),
    *(0.24022650695910097, 0.69314718055995, 1.0),
)
_LOG2_E = 1.4426950408889634


def edits_of(request: RowRequest) -> list[Rule]:
    """The rules about single tokens that come before all others."""
    first = [number for number, rule in enumerate(request.rules) if rule.action > Action.KEEP]
    return list(request.rules[: first[0] if first else None])


def scale_after(request: RowRequest) -> float:
    """The scale of the logits when the first rule looks at their probabilities."""
    scale = 1.0
    for rule in request.rules[len(edits_of(request)) :]:
        if rule.action is not Action.SCALE:
            break
        scale *= rule.amount
    return scale


def edited_row(x: Float32, edits: list[Rule]) -> Float32:
    x = x.copy()
    for action, amount, which, numbers in edits:
        if action is Action.KEEP:
            x[~which] = -np.inf
        elif action is Action.REMOVE:
            x[which] = -np.inf
        else:
            before = x[which].astype(np.float64)
            less = before - (amount if numbers is None else amount * numbers)
            divided = np.where(before >= 0, before / amount, before * amount)
            after = less if action is Action.LESS else divided
            most = np.finfo(np.float32).max
            x[which] = np.where(before == -np.inf, -np.inf, after.clip(-most, most))
    return x


def found_in(
    x: Float32, head: int, scale: float, key: int | None, position: int, winner: int | None = None
) -> bytes:
    """Returns the piece of memory about one row. `winner` is the token whose rank is found; by default the
    winner of the race, if it is not high."""
    groups = np.full(-(-len(x) // _GROUPS) * _GROUPS, -np.inf, np.float32)
    groups[: len(x)] = x
    maxima = np.sort(groups.reshape(-1, _GROUPS).max(0))[::-1]
    least, ids = maxima[head - 1], np.arange(len(x))
    high = (x >= least) & (x > -np.inf)
    others, bound = np.zeros(len(x), np.bool_), np.inf
    if key is not None:
        with np.errstate(invalid="ignore"):
            score = x.astype(np.float64) * scale + luck_of(
                mix((key + GOLDEN + position) & ((1 << 64) - 1)), ids
            )
        bound = np.sort(score)[-2] if len(x) > 1 else -np.inf
        others = ~high & (x > -np.inf) & (score >= bound)
        best = int(np.flatnonzero(score == score.max())[0])
        if winner is None and not high[best] and x[best] > -np.inf:
            winner = best
    own, rank = 0.0, 0
    if winner is not None:
        own = float(x[winner])
        rank = int((x > x[winner]).sum() + (x[:winner] == x[winner]).sum())
    piece = bytearray(lib.library().gl_found_bytes(len(x)))
    header = lib.Found(
        int(high.sum()), int(others.sum()), -1 if winner is None else winner, rank, float(x.max()),
        float(least), float(bound), own, 0,
    )  # fmt: skip
    piece[: sizeof(header)] = bytes(header)
    sums = _sums(x, scale)
    at = sizeof(header) + sums.nbytes
    piece[sizeof(header) : at] = sums.tobytes()
    rng = np.random.default_rng(int(high.sum()))
    for chosen, room in ((high, lib.MOST_HIGH), (others, lib.MOST_OTHERS)):
        listed = rng.permutation(ids[chosen])[:room]  # a device lists them in any order
        after = at + 4 * (lib.MOST_HIGH + lib.MOST_OTHERS)
        piece[at : at + 4 * len(listed)] = listed.astype(np.int32).tobytes()
        piece[after : after + 4 * len(listed)] = x[listed].tobytes()
        at += 4 * room
    return bytes(piece)


def _sums(x: Float32, scale: float) -> Any:
    parts = -(-len(x) // _PART)
    found = np.zeros((parts, 4))
    for part in range(parts):
        some = x[part * _PART : (part + 1) * _PART]
        padded = np.full(-(-len(some) // 8) * 8, -np.inf)
        padded[: len(some)] = some
        for place, factor in ((0, 1.0), (2, scale)):
            found[part, place : place + 2] = _part_sums(padded.reshape(-1, 8), float(x.max()), factor)
    return found


def _part_sums(x: Any, most: float, scale: float) -> tuple[float, float]:
    with np.errstate(invalid="ignore"):
        d = (x - most) * (scale * _LOG2_E)
    d = np.where(d > -1000.0, d, np.where(np.isnan(d), d, -1000.0))
    magic = 6755399441055744.0 + 1023
    shifted = d + magic
    r = d - (shifted - magic)
    p = np.full_like(d, _SERIES[0])
    for each in _SERIES[1:]:
        p = fused(p, r, np.full_like(d, each))
    powers = p * (shifted.view(np.int64) << 52).view(np.float64)
    total, weighted = np.zeros(8), np.zeros(8)
    for power, exponent in zip(powers, d, strict=True):
        total = total + power
        weighted = fused(power, exponent, weighted)
    return _lanes(total), _lanes(weighted)


def _lanes(x: Any) -> float:
    return float(((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7])))
