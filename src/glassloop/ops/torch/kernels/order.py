"""Kernels that put the tokens of a row in order, for lines whose cuts leave more of them than C gets in a
list.

The counts of `count_kernel` (kernels/cuts.py) say where the tokens of each bin begin. The tokens are put
there in any order, as keys, and then each counts how many of its bin come before it: bins hold few tokens. A
key is a 64-bit number that has the order of tokens: descending logits, ties by lower id. Of tokens in bins
that the first cut has not reached, only the sums of their weights are kept.

A slot is the memory for one such line. There may be fewer slots than lines: then they are used again.
"""

from __future__ import annotations

import triton
import triton.language as tl

from glassloop.ops.torch.kernels.cuts import BINS, bins_of, scales_of
from glassloop.ops.torch.kernels.lines import (
    ACTION,
    AMOUNT,
    COUNT,
    LINE,
    MOST,
    RULE,
    RULE_COUNT,
    RULE_SCALE,
    RULES,
    row_of,
)
from glassloop.ops.torch.kernels.power import power_of_two

MOST_IN_BIN = tl.constexpr(4096)  # of a fuller bin, the line is left to the host
_NO_KEY = tl.constexpr(0x7FFFFFFFFFFFFFFF)


@triton.jit
def ordered(x):
    """Returns integers in the order of float32 numbers."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def keys_of(x, ids):
    """Returns the keys of tokens."""
    x = tl.where(x == 0.0, 0.0, x)  # minus zero equals zero
    return ((-1 - ordered(x)).to(tl.int64) << 32) | ids.to(tl.int64)


@triton.jit
def logits_of(keys):
    bits = -1 - (keys >> 32).to(tl.int32)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@triton.jit
def ids_of(keys):
    return (keys & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def line_of(slots, first):
    """Returns the number of the line of a slot, or -1: the line numbers follow their count."""
    slot = first + tl.program_id(0)
    return tl.where(slot < tl.load(slots), tl.load(slots + 1 + slot), -1).to(tl.int64)


@triton.jit(do_not_specialize=["pieces"])
def slots_kernel(ints, firsts, slots, full, pieces, found_bytes, HIGH: tl.constexpr, BLOCK: tl.constexpr):
    """Lists the lines that need their tokens in order, behind their count: those whose first cut leaves more
    than are listed for C, or nearly as many."""
    total = tl.full([], 0, tl.int32)
    for start in range(0, pieces, BLOCK):
        number = start + tl.arange(0, BLOCK)
        inside = number < pieces
        left = tl.load(firsts + number, mask=inside, other=-1)
        count = tl.load(ints + number.to(tl.int64) * (found_bytes // 4) + COUNT, mask=inside, other=0)
        needed = (left >= 0) & ((left + left // 16 + 4 > count) | (count > HIGH))
        place = total + tl.cumsum(needed.to(tl.int32), 0)
        tl.store(slots + place, number, mask=needed)
        tl.store(full + number, 0, mask=inside)
        total += tl.sum(needed.to(tl.int32), 0)
    tl.store(slots, total)


@triton.jit
def scale_before_cuts(line):
    """Returns the scale at which the first cut of a line sees the logits."""
    scale = tl.full([], 1.0, tl.float64)
    cuts = tl.full([], 0, tl.int32)
    for index in range(tl.load(line + RULE_COUNT).to(tl.int32)):
        rule = line + RULES + index * RULE
        action = tl.load(rule + ACTION).to(tl.int32)
        cuts += (action > RULE_SCALE).to(tl.int32)
        amount = tl.load(rule + AMOUNT).to(tl.float64, bitcast=True)
        scale = tl.where((action == RULE_SCALE) & (cuts == 0), scale * amount, scale)
    return scale


@triton.jit(do_not_specialize=["first"])
def scatter_kernel(
    logits,
    edited,
    lines,
    floats,
    counts,
    untils,
    tails,
    slots,
    keys,
    first,
    stride,
    width,
    found_bytes,
    BLOCK: tl.constexpr,
):
    """Stores the key of each token in the place of its bin. Afterwards `counts`, where the bins began, has
    where they end. The weights of the tokens in later bins than the first cut leaves are summed up instead,
    and how far their logits are below the highest, times their weights: `tails` has both for each program."""
    number = line_of(slots, first)
    if number >= 0:
        line = lines + number * LINE
        largest, _, _ = scales_of(line)
        ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        row = row_of(logits, edited, line, number, stride)
        x = tl.load(row + ids, mask=ids < width, other=float("-inf"))
        most = tl.load(floats + number * (found_bytes // 4) + MOST)
        bins, until = bins_of(x, most, largest), tl.load(untils + number)
        placed = (x > float("-inf")) & (bins <= until)
        place = tl.atomic_add(counts + number * BINS + bins, 1, mask=placed, sem="relaxed")
        to = keys + tl.program_id(0).to(tl.int64) * stride
        # With a logit that is not finite, places may be anything.
        tl.store(to + place, keys_of(x, ids), mask=placed & (place >= 0) & (place < width))
        in_tail = (x > float("-inf")) & (bins > until)
        below = (most.to(tl.float64) - x.to(tl.float64)) * scale_before_cuts(line)
        below = tl.where(in_tail & (below < 690.0), below, 690.0)
        weights = tl.where(in_tail, power_of_two(below * -1.4426950408889634), 0.0)
        tail = tails + 2 * (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1))
        tl.store(tail, tl.sum(weights, 0))
        tl.store(tail + 1, tl.sum(weights * below, 0))


@triton.jit(do_not_specialize=["first"])
def order_kernel(
    lines,
    floats,
    counts,
    untils,
    slots,
    keys,
    sorted_keys,
    full,
    first,
    stride,
    found_bytes,
    BLOCK: tl.constexpr,
):
    """Stores the keys of a slot in order. Notes in `full` the line of which a bin is too full for that."""
    number = line_of(slots, first)
    if number >= 0:
        total = tl.load(counts + number * BINS + tl.load(untils + number))
        place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = place < total
        if tl.program_id(1) * BLOCK < total:
            largest, _, _ = scales_of(lines + number * LINE)
            keys += tl.program_id(0).to(tl.int64) * stride
            key = tl.load(keys + place, mask=inside, other=_NO_KEY)
            bins = bins_of(logits_of(key), tl.load(floats + number * (found_bytes // 4) + MOST), largest)
            bins = tl.where(inside, bins, 0)
            end = tl.load(counts + number * BINS + bins, mask=inside, other=0)
            begin = tl.load(counts + number * BINS + bins - 1, mask=inside & (bins > 0), other=0)
            longest = tl.max(tl.where(inside, end - begin, 0), 0)
            if longest > MOST_IN_BIN:
                tl.store(full + number, 1)
            else:
                rank = tl.zeros([BLOCK], tl.int32)
                for step in range(longest):
                    other = tl.load(keys + begin + step, mask=inside & (begin + step < end), other=_NO_KEY)
                    rank += (other < key).to(tl.int32)
                to = sorted_keys + tl.program_id(0).to(tl.int64) * stride
                tl.store(to + begin + rank, key, mask=inside)
