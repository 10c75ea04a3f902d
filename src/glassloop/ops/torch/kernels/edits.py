"""Kernels that copy rows of logits and apply rules about single tokens to the copies."""

from __future__ import annotations

import triton
import triton.language as tl

from glassloop.ops.torch.kernels.lines import (
    ACTION,
    AMOUNT,
    EDIT,
    EDIT_COUNT,
    EDIT_IDS,
    EDIT_NUMBERS,
    EDITS,
    FIRST_EDIT,
    KEPT,
    LINE,
    RULE_LESS,
    RULE_REMOVE,
    SOURCE,
)

_MOST_FLOAT = tl.constexpr(3.4028234663852886e38)


@triton.jit(do_not_specialize=["first"])
def copy_kernel(logits, edited, lines, words, first, stride, width, BLOCK: tl.constexpr):
    """Copies the rows of the lines from `first` on, without the tokens outside the masks of their edits.
    `words` are the lines as 32-bit numbers."""
    number = tl.program_id(0).to(tl.int64)
    line = lines + (first + number) * LINE
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = ids < width
    x = tl.load(logits + tl.load(line + SOURCE) * stride + ids, mask=inside, other=0.0)
    edits = tl.load(line + EDITS)
    kept = tl.load(lines + edits + KEPT)
    if kept != 0:
        word = tl.load(words + (edits + kept) * 2 + ids // 32, mask=inside, other=0)
        x = tl.where(((word >> (ids % 32)) & 1) != 0, x, float("-inf"))
    tl.store(edited + number * stride + ids, x, mask=inside)


@triton.jit(do_not_specialize=["first"])
def edit_kernel(edited, lines, words, first, stride, BLOCK: tl.constexpr):
    """Changes and removes single tokens of the rows that `copy_kernel` has copied, one edit after another: as
    `moved` of ops/native/candidates.c, at a scale of 1."""
    number = tl.program_id(0).to(tl.int64)
    edits = tl.load(lines + (first + number) * LINE + EDITS)
    row = edited + number * stride
    for index in range(tl.load(lines + edits + EDIT_COUNT).to(tl.int32)):
        edit = lines + edits + FIRST_EDIT + index * EDIT
        action, count = tl.load(edit + ACTION).to(tl.int32), tl.load(edit + 1).to(tl.int32)
        amount = tl.load(edit + AMOUNT).to(tl.float64, bitcast=True)
        listed = words + (edits + tl.load(edit + EDIT_IDS)) * 2
        factors = tl.load(edit + EDIT_NUMBERS)
        for start in range(0, count, BLOCK):
            place = start + tl.arange(0, BLOCK)
            inside = place < count
            ids = tl.load(listed + place, mask=inside, other=0)
            before = tl.load(row + ids, mask=inside, other=0.0)
            bits = tl.load(lines + edits + factors + place, mask=inside & (factors != 0), other=0)
            less = tl.where(factors != 0, amount * bits.to(tl.float64, bitcast=True), amount)
            logit = before.to(tl.float64)
            divided = tl.where(logit >= 0, logit / amount, logit * amount)
            after = tl.where(action == RULE_LESS, logit - less, divided)
            after = tl.minimum(tl.maximum(after, -_MOST_FLOAT), _MOST_FLOAT).to(tl.float32)
            removed = (before == float("-inf")) | (action == RULE_REMOVE)
            tl.store(row + ids, tl.where(removed, float("-inf"), after), mask=inside)
        # The next edit may be about the same tokens, and other threads read them.
        tl.debug_barrier()
