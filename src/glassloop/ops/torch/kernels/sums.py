"""Sums over rows of logits, in the order that the native op set has."""

from __future__ import annotations

import triton
import triton.language as tl

from glassloop.ops.torch.kernels.lines import OF, PART, scale_of
from glassloop.ops.torch.kernels.order import keys_of
from glassloop.ops.torch.kernels.power import power_of_two


@triton.jit
def lanes_summed(x, PARTS: tl.constexpr):
    """Adds up the eight lanes of each part, two at a time: lane i and i + 4, then i + 2, then i + 1."""
    x = tl.sum(tl.reshape(x, [PARTS, 2, 4]), 1)
    x = tl.sum(tl.reshape(x, [PARTS, 2, 2]), 1)
    return tl.sum(x, 1)


@triton.jit
def sums_of(row, at, lane, size, most, scale, low, high, PARTS: tl.constexpr, SOME: tl.constexpr):
    """Returns the sums of 2^d and of d 2^d of each part, where d = (logit - most) * scale, at least -1000.
    If SOME, the other tokens than those with keys from `low` to `high` count as removed."""
    total = tl.zeros([PARTS * 8], tl.float64)
    weighted = tl.zeros([PARTS * 8], tl.float64)
    for first in range(0, tl.minimum(PART, tl.max(size, 0)), 256):
        for step in tl.static_range(0, 256, 8):
            place = first + step + lane
            x = tl.load(row + at + place, mask=place < size, other=float("-inf"))
            if SOME:
                keys = keys_of(x, at + place)
                x = tl.where((keys >= low) & (keys <= high), x, float("-inf"))
            x = x.to(tl.float64)
            d = (x - most) * scale
            d = tl.where(d < -1000.0, -1000.0, d)
            power = power_of_two(d)
            inside = first + step < size
            total = tl.where(inside, total + power, total)
            weighted = tl.where(inside, tl.fma(power, d, weighted), weighted)
    return lanes_summed(total, PARTS), lanes_summed(weighted, PARTS)


@triton.jit
def store_sums(row, line, number, first, most, out, width, PARTS: tl.constexpr):
    """Writes the sums of PARTS parts of a row from part `first` on: with the logits themselves and times the
    scale of the line. Of a row after its edits, only the latter are needed."""
    lanes = tl.arange(0, PARTS * 8)
    at = (first + lanes // 8) * PART
    size = width - at  # of the part; a part may be none of the row
    parts = first + tl.arange(0, PARTS)
    out += parts * 4
    inside = parts * PART < width
    log2_e = tl.full([], 1.4426950408889634, tl.float64)
    scale, of = scale_of(line), tl.load(line + OF)
    if (of < 0) | (of == number) | (scale == 1.0):
        total, weighted = sums_of(row, at, lanes % 8, size, most, log2_e, 0, 0, PARTS, False)
        tl.store(out, total, mask=inside)
        tl.store(out + 1, weighted, mask=inside)
    if scale != 1.0:
        total, weighted = sums_of(row, at, lanes % 8, size, most, scale * log2_e, 0, 0, PARTS, False)
        tl.store(out + 2, total, mask=inside)
        tl.store(out + 3, weighted, mask=inside)


@triton.jit
def store_sums_between(row, first, most, scale, low, high, out, width, PARTS: tl.constexpr):
    """Writes the sums of PARTS parts of a row from part `first` on over the tokens with keys from `low` to
    `high`: with the logits times a scale."""
    lanes = tl.arange(0, PARTS * 8)
    at = (first + lanes // 8) * PART
    parts = first + tl.arange(0, PARTS)
    log2_e = tl.full([], 1.4426950408889634, tl.float64)
    total, weighted = sums_of(row, at, lanes % 8, width - at, most, scale * log2_e, low, high, PARTS, True)
    tl.store(out + 2 * parts, total, mask=parts * PART < width)
    tl.store(out + 2 * parts + 1, weighted, mask=parts * PART < width)
