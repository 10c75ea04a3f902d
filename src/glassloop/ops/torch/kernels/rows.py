"""Kernels that look through rows of logits for what choosing a token needs: the highest logits, sums over
all of them, and the tokens that luck may let win.

A line is one choice: a row of logits, and how to choose from it. What is found for it lies in one piece of
memory, in the layout of `gl_found` (ops/native/choosing.h), and C chooses from that. Sums have the order, and
luck the operations, that the native op set has, so both find the same bits.

If the rules of a choice begin with edits (penalties, biases, masks: rules about single tokens), it has two
lines: one for the row as the model gave it, without luck, and one for a copy of the row after the edits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from glassloop.ops.torch.kernels.cuts import scales_of
from glassloop.ops.torch.kernels.lines import (
    BOUND,
    COUNT,
    HEAD,
    HEADER,
    LEAST,
    LINE,
    LUCKY,
    MOST,
    MOST_HEAD,
    OF,
    OTHERS,
    OWN,
    RANK,
    VALID,
    WINNER,
    cut_of,
    key_of,
    row_of,
    scale_of,
)
from glassloop.ops.torch.kernels.luck import luck_of, rough_luck, uniform_bits
from glassloop.ops.torch.kernels.order import ordered
from glassloop.ops.torch.kernels.pointwise import let_next_start, wait_for_previous
from glassloop.ops.torch.kernels.sums import store_sums


@triton.jit
def maxima_kernel(
    logits,
    edited,
    lines,
    maxima,
    places,
    scores,
    stride,
    width,
    GROUPS: tl.constexpr,
    SOME: tl.constexpr,
    STEPS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Finds the highest logit of each group and, if luck decides, about the highest score and the id that has
    it (-1: there is none). Group g has the ids g, g + GROUPS, g + 2 GROUPS, ... so that tokens that lie
    together, and are often likely together, are in different groups."""
    let_next_start(EARLY)
    wait_for_previous(EARLY)
    number, groups = tl.program_id(0).to(tl.int64), tl.program_id(1) * SOME + tl.arange(0, SOME)
    line = lines + number * LINE
    row = row_of(logits, edited, line, number, stride)
    lucky = tl.load(line + LUCKY) != 0
    key, scale = key_of(line), scale_of(line).to(tl.float32)
    most = tl.full([SOME], float("-inf"), tl.float32)
    best = tl.full([SOME], float("-inf"), tl.float32)
    at = tl.full([SOME], -1, tl.int32)
    for first in range(0, width, GROUPS * STEPS):
        ids = first + tl.arange(0, STEPS)[:, None] * GROUPS + groups[None, :]
        x = tl.load(row + ids, mask=ids < width, other=float("-inf"))
        x = tl.where(x == x, x, float("-inf"))
        most = tl.maximum(most, tl.max(x, 0))
        if lucky:
            score = x * scale + rough_luck(uniform_bits(key, ids.to(tl.int64)))
            highest = tl.max(score, 0)
            place = first + tl.argmax(score, 0) * GROUPS + groups
            at = tl.where(highest > best, place, at)
            best = tl.where(highest > best, highest, best)
    tl.store(maxima + number * GROUPS + groups, most)
    tl.store(places + number * GROUPS + groups, at)
    tl.store(scores + number * GROUPS + groups, best)


@triton.jit
def least_reaching(order, weights, enough):
    """Returns the largest t for which the weights of values >= t sum to at least `enough`, by a bitwise
    search; the smallest integer if the total is less."""
    least = tl.full([], -2147483648, tl.int32)
    least = tl.where(tl.sum(tl.where(order >= 0, weights, 0), 0) >= enough, tl.full([], 0, tl.int32), least)
    for bit in tl.static_range(30, -1, -1):
        more = least | (1 << bit)
        least = tl.where(tl.sum(tl.where(order >= more, weights, 0), 0) >= enough, more, least)
    return least


@triton.jit
def bounds_kernel(
    logits,
    edited,
    lines,
    maxima,
    places,
    ints,
    floats,
    doubles,
    stride,
    parts,
    found_bytes,
    GROUPS: tl.constexpr,
    HIGH: tl.constexpr,
    OTHER: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Finds the highest logit of a line, a logit that at least as many as its head reach, and a score that
    the second in the race reaches: that of two of the groups' luckiest tokens."""
    let_next_start(EARLY)
    wait_for_previous(EARLY)
    number, groups = tl.program_id(0).to(tl.int64), tl.arange(0, GROUPS)
    line = lines + number * LINE
    x = tl.load(maxima + number * GROUPS + groups)
    head, scale = tl.minimum(tl.load(line + HEAD).to(tl.int32), MOST_HEAD), scale_of(line)
    least = least_reaching(ordered(x), tl.full([GROUPS], 1, tl.int32), head)
    least = tl.where(least < 0, least ^ 0x7FFFFFFF, least).to(tl.float32, bitcast=True)
    bound = tl.full([], float("inf"), tl.float64)
    if tl.load(line + LUCKY) != 0:
        ids = tl.load(places + number * GROUPS + groups).to(tl.int64)
        row = row_of(logits, edited, line, number, stride)
        own = tl.load(row + ids, mask=ids >= 0, other=float("-inf"))
        score = own.to(tl.float64) * scale + luck_of(uniform_bits(key_of(line), ids))
        first = tl.argmax(score, 0)
        bound = tl.max(tl.where(groups == first, float("-inf"), score), 0)
    tl.store(ints + cut_of(number, parts, found_bytes, HIGH, OTHER) + VALID, 0)
    ints += number * (found_bytes // 4)
    floats += number * (found_bytes // 4)
    tl.store(ints + COUNT, 0)
    tl.store(ints + OTHERS, 0)
    tl.store(ints + WINNER, -1)
    tl.store(ints + RANK, 0)
    tl.store(floats + MOST, tl.max(x, 0))
    tl.store(floats + LEAST, least)
    tl.store(doubles + number * (found_bytes // 8) + BOUND, bound)


@triton.jit
def store_found(x, ids, chosen, counter, id_array, logit_array, ROOM: tl.constexpr):
    """Appends the chosen tokens to a list, as far as there is room."""
    place = tl.cumsum(chosen.to(tl.int32), 0) - 1
    count = tl.sum(chosen.to(tl.int32), 0)
    place += tl.atomic_add(counter, count, sem="relaxed")
    tl.store(id_array + place, ids, mask=chosen & (place < ROOM))
    tl.store(logit_array + place, x, mask=chosen & (place < ROOM))


@triton.jit
def store_high(
    row, least, counter, id_array, logit_array, first, width, BLOCK: tl.constexpr, ROOM: tl.constexpr
):
    """Lists those of BLOCK tokens from id `first` on whose logit is `least` or more."""
    ids = first + tl.arange(0, BLOCK)
    x = tl.load(row + ids, mask=ids < width, other=float("-inf"))
    high = (x > float("-inf")) & (x >= least)
    if tl.sum(high.to(tl.int32), 0) > 0:
        store_found(x, ids, high, counter, id_array, logit_array, ROOM)


@triton.jit
def store_lucky(
    row,
    line,
    scores,
    least,
    bound,
    counter,
    id_array,
    logit_array,
    first,
    width,
    GROUPS: tl.constexpr,
    SOME: tl.constexpr,
    STEPS: tl.constexpr,
    ROOM: tl.constexpr,
):
    """Lists the tokens of SOME groups from `first` on whose score reaches a bound and whose logit is less
    than `least`. Only a group in which the highest score is about as high can have one: few have."""
    groups = first + tl.arange(0, SOME)
    # Scores of groups are float32: this is far more than their error.
    slack = 0.01 + 1e-5 * tl.abs(bound)
    may = tl.load(scores + groups).to(tl.float64) >= bound - slack
    if tl.sum(may.to(tl.int32), 0) > 0:
        key, scale = key_of(line), scale_of(line)
        for start in range(0, width, GROUPS * STEPS):
            ids = start + tl.arange(0, STEPS)[:, None] * GROUPS + groups[None, :]
            x = tl.load(row + ids, mask=(ids < width) & may[None, :], other=float("-inf"))
            score = x.to(tl.float64) * scale + luck_of(uniform_bits(key, ids.to(tl.int64)))
            lucky = (x > float("-inf")) & (x < least) & (score >= bound)
            listed = tl.reshape(lucky, [STEPS * SOME])
            if tl.sum(listed.to(tl.int32), 0) > 0:
                logits, names = tl.reshape(x, [STEPS * SOME]), tl.reshape(ids, [STEPS * SOME])
                store_found(logits, names, listed, counter, id_array, logit_array, ROOM)


@triton.jit(do_not_specialize=["summing", "listing"])
def search_kernel(
    logits,
    edited,
    lines,
    scores,
    ints,
    floats,
    doubles,
    stride,
    width,
    parts,
    found_bytes,
    summing,
    listing,
    GROUPS: tl.constexpr,
    SOME: tl.constexpr,
    STEPS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    HIGH: tl.constexpr,
    OTHER: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Writes the sums of a row, and lists the tokens that are high and the others that may win the race or be
    second in it. The first `summing` programs of a line sum, the next `listing` ones list high tokens, the
    rest the others: one kernel, so that none waits for another."""
    let_next_start(EARLY)
    wait_for_previous(EARLY)
    number, program = tl.program_id(0).to(tl.int64), tl.program_id(1)
    line = lines + number * LINE
    row = row_of(logits, edited, line, number, stride)
    ints += number * (found_bytes // 4)
    floats += number * (found_bytes // 4)
    doubles += number * (found_bytes // 8)
    listed, listed_logits = ints + HEADER + 8 * parts, floats + HEADER + 8 * parts + HIGH + OTHER
    least = tl.load(floats + LEAST)
    if program < summing:
        most = tl.load(floats + MOST).to(tl.float64)
        store_sums(row, line, number, program * PARTS, most, doubles + HEADER // 2, width, PARTS)
    elif program < summing + listing:
        first = (program - summing) * BLOCK
        store_high(row, least, ints + COUNT, listed, listed_logits, first, width, BLOCK, HIGH)
    elif tl.load(line + LUCKY) != 0:
        first, bound = (program - summing - listing) * SOME, tl.load(doubles + BOUND)
        store_lucky(
            row, line, scores + number * GROUPS, least, bound,
            ints + OTHERS, listed + HIGH, listed_logits + HIGH,
            first, width, GROUPS, SOME, STEPS, OTHER,
        )  # fmt: skip


@triton.jit
def best_of(ids, x, inside, line, scale):
    """Returns the highest score of some tokens, and the lowest id that has it."""
    luck = luck_of(uniform_bits(key_of(line), tl.where(inside, ids, 0).to(tl.int64)))
    score = x.to(tl.float64) * scale + luck
    score = tl.where(inside, score, float("-inf"))
    best = tl.max(score, 0)
    return best, tl.min(tl.where(inside & (score == best), ids, 0x7FFFFFFF), 0)


@triton.jit
def winner_kernel(
    lines,
    ints,
    floats,
    parts,
    found_bytes,
    HIGH: tl.constexpr,
    OTHER: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Finds the winner of the race of a line, if it is not one of the tokens that are high."""
    let_next_start(EARLY)
    wait_for_previous(EARLY)
    number = tl.program_id(0).to(tl.int64)
    line = lines + number * LINE
    if tl.load(line + LUCKY) != 0:
        ints += number * (found_bytes // 4)
        floats += number * (found_bytes // 4) + HEADER + 8 * parts + HIGH + OTHER
        listed = ints + HEADER + 8 * parts
        high, other = tl.arange(0, HIGH), tl.arange(0, OTHER)
        is_high, is_other = high < tl.load(ints + COUNT), other < tl.load(ints + OTHERS)
        ids = tl.load(listed + high, mask=is_high, other=0)
        scale = scale_of(line)
        best, first = best_of(ids, tl.load(floats + high, mask=is_high, other=0.0), is_high, line, scale)
        ids = tl.load(listed + HIGH + other, mask=is_other, other=0)
        x = tl.load(floats + HIGH + other, mask=is_other, other=0.0)
        other_best, other_first = best_of(ids, x, is_other, line, scale)
        if (other_best > best) | ((other_best == best) & (other_first < first)):
            tl.store(ints + WINNER, other_first)


@triton.jit
def predict_kernel(
    lines,
    ints,
    floats,
    predicted,
    race_scores,
    race_ids,
    parts,
    found_bytes,
    HIGH: tl.constexpr,
    OTHER: tl.constexpr,
    GROUPS: tl.constexpr,
    SOME: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Predicts the token of a line from what was found, before C has chosen it: the highest, the winner of
    the race, or if there are cuts, the winner of the race among what they leave (kernels/cuts.py). It does
    not care how ties are broken. For an edited row, the predicted token is stored as the winner of the
    unedited row, because C needs its rank there."""
    let_next_start(EARLY)
    wait_for_previous(EARLY)
    number = tl.program_id(0).to(tl.int64)
    line, of = lines + number * LINE, tl.load(lines + number * LINE + OF)
    before = ints + of * (found_bytes // 4)
    ints += number * (found_bytes // 4)
    floats += number * (found_bytes // 4)
    listed, logits = ints + HEADER + 8 * parts, floats + HEADER + 8 * parts + HIGH + OTHER
    high = tl.arange(0, HIGH)
    alive = high < tl.load(ints + COUNT)
    ids = tl.load(listed + high, mask=alive, other=0)
    x = tl.load(logits + high, mask=alive, other=float("-inf"))
    winner = tl.min(tl.where(alive & (x == tl.max(x, 0)), ids, 0x7FFFFFFF), 0)
    _, scale, cuts = scales_of(line)
    if cuts > 0:
        chunks = tl.arange(0, GROUPS // SOME)
        scores = tl.load(race_scores + number * (GROUPS // SOME) + chunks)
        names = tl.load(race_ids + number * (GROUPS // SOME) + chunks)
        winner = tl.min(tl.where(scores == tl.max(scores, 0), names, 0x7FFFFFFF), 0)
    elif tl.load(line + LUCKY) != 0:
        best, winner = best_of(ids, x, alive, line, scale)
        other = tl.arange(0, OTHER)
        is_other = other < tl.load(ints + OTHERS)
        other_ids = tl.load(listed + HIGH + other, mask=is_other, other=0)
        other_x = tl.load(logits + HIGH + other, mask=is_other, other=0.0)
        other_best, other_first = best_of(other_ids, other_x, is_other, line, scale)
        winner = tl.where(other_best > best, other_first, winner)
    # The next batch reads a row of the embedding by it, so it has to be an id even if nothing was found.
    winner = tl.where(winner == 0x7FFFFFFF, 0, winner)
    tl.store(predicted + of, winner, mask=of >= 0)
    tl.store(before + WINNER, winner, mask=(of >= 0) & (of != number))


@triton.jit
def rank_kernel(
    logits,
    edited,
    lines,
    ints,
    floats,
    stride,
    width,
    found_bytes,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Finds the logit of the winner, and how many come before it: higher ones, equal ones of a lower id."""
    let_next_start(EARLY)
    wait_for_previous(EARLY)
    number = tl.program_id(0).to(tl.int64)
    ints += number * (found_bytes // 4)
    winner = tl.load(ints + WINNER)
    if winner >= 0:
        row = row_of(logits, edited, lines + number * LINE, number, stride)
        own = tl.load(row + winner)
        if tl.program_id(1) == 0:
            tl.store(floats + number * (found_bytes // 4) + OWN, own)
        ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(row + ids, mask=ids < width, other=float("-inf"))
        before = (x > own) | ((x == own) & (ids < winner))
        tl.atomic_add(ints + RANK, tl.sum(before.to(tl.int32), 0), sem="relaxed")


@triton.jit(do_not_specialize=["rows"])
def fill_kernel(tokens, predicted, rows, BLOCK: tl.constexpr):
    """Replaces tokens -1 - n by the prediction for line n."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(tokens + row, mask=row < rows, other=0)
    named = tl.load(predicted + (-1 - token), mask=token < 0, other=0)
    tl.store(tokens + row, named, mask=token < 0)
