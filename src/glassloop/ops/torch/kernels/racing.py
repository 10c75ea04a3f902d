"""Kernels that run the race among the survivors of cuts (kernels/survivors.py), and sum up their weights by
the operations and in the order of the native op set."""

from __future__ import annotations

import triton
import triton.language as tl

from glassloop.ops.torch.kernels.cuts import scales_of
from glassloop.ops.torch.kernels.lines import (
    HIGHEST,
    LINE,
    LIST_SUM,
    LISTED,
    LUCKY,
    MOST,
    MOST_RACERS,
    OF,
    RACERS,
    VALID,
    WINNER,
    cut_of,
    key_of,
    row_of,
)
from glassloop.ops.torch.kernels.luck import luck_of, rough_luck, uniform_bits
from glassloop.ops.torch.kernels.order import ids_of, line_of, logits_of
from glassloop.ops.torch.kernels.power import power_of_e
from glassloop.ops.torch.kernels.sums import store_sums_between
from glassloop.ops.torch.kernels.survivors import value_at


@triton.jit
def best_two(score, ids, place):
    """Returns the two highest scores, ties by lower id, each with its place and id; minus infinity and -1 if
    there are fewer."""
    first = tl.max(score, 0)
    first_id = tl.min(tl.where(score == first, ids, 0x7FFFFFFF), 0)
    is_first = (score == first) & (ids == first_id)
    first_place = tl.max(tl.where(is_first, place, -1), 0)
    rest = tl.where(is_first, float("-inf"), score)
    ids = tl.where(is_first, 0x7FFFFFFF, ids)
    second = tl.max(rest, 0)
    second_id = tl.min(tl.where(rest == second, ids, 0x7FFFFFFF), 0)
    second_place = tl.max(tl.where((rest == second) & (ids == second_id), place, -1), 0)
    return first, first_id, first_place, second, second_id, second_place


@triton.jit(do_not_specialize=["first"])
def racers_kernel(
    lines,
    ints,
    floats,
    slots,
    sorted_keys,
    bounds,
    race_scores,
    first,
    stride,
    parts,
    found_bytes,
    GROUPS: tl.constexpr,
    SOME: tl.constexpr,
    RACES: tl.constexpr,
    BLOCK: tl.constexpr,
    HIGH: tl.constexpr,
    OTHER: tl.constexpr,
):
    """Finds the first and the second in the race among some survivors, one share of them for each program.
    Only tokens are looked at whose score is at least about that of two tokens in `race_scores`, if luck
    decides."""
    number = line_of(slots, first)
    if number >= 0:
        line = lines + number * LINE
        sorted_keys += tl.program_id(0).to(tl.int64) * stride
        begin, end = tl.load(bounds + 2 * number), tl.load(bounds + 2 * number + 1)
        share = ((end - begin + RACES - 1) // RACES + 1) // 2 * 2
        begin += tl.program_id(1) * share
        end = tl.minimum(end, begin + share)
        _, scale, _ = scales_of(line)
        key, lucky = key_of(line), tl.load(line + LUCKY) != 0
        most = tl.load(floats + number * (found_bytes // 4) + MOST)
        chunk = tl.arange(0, GROUPS // SOME)
        scores_before = tl.load(race_scores + number * (GROUPS // SOME) + chunk)
        is_highest = chunk == tl.argmax(scores_before, 0)
        bound = tl.max(tl.where(is_highest, float("-inf"), scores_before), 0)
        # This is far more than the error of scores in float32.
        bound = tl.where(lucky, bound - 0.02 - 1e-5 * tl.abs(bound), float("-inf"))
        best = tl.full([BLOCK], float("-inf"), tl.float64)
        best_key = tl.zeros([BLOCK], tl.int64)
        best_place = tl.full([BLOCK], -1, tl.int32)
        second = tl.full([BLOCK], float("-inf"), tl.float64)
        second_key = tl.zeros([BLOCK], tl.int64)
        second_place = tl.full([BLOCK], -1, tl.int32)
        for start in range(begin, end, BLOCK):
            place = start + tl.arange(0, BLOCK)
            token = tl.load(sorted_keys + place, mask=place < end, other=0)
            bits = uniform_bits(key, ids_of(token).to(tl.int64))
            rough = (logits_of(token) - most) * scale.to(tl.float32) + tl.where(lucky, rough_luck(bits), 0.0)
            high = (place < end) & (rough >= bound)
            score = tl.full([BLOCK], float("-inf"), tl.float64)
            if tl.max(high.to(tl.int32), 0) > 0:
                score = logits_of(token).to(tl.float64) * scale
                if lucky:
                    score += luck_of(bits)
                score = tl.where(high, score, float("-inf"))
            # The best two of each lane; of equal ones, that of the lower id is before the other.
            lower = ids_of(token) < ids_of(best_key)
            wins = (score > best) | ((score == best) & lower & high)
            loser = tl.where(wins, best, score)
            loser_key = tl.where(wins, best_key, token)
            loser_place = tl.where(wins, best_place, place)
            best = tl.where(wins, score, best)
            best_key = tl.where(wins, token, best_key)
            best_place = tl.where(wins, place, best_place)
            lower = ids_of(loser_key) < ids_of(second_key)
            wins = (loser > second) | ((loser == second) & lower & (loser > float("-inf")))
            second = tl.where(wins, loser, second)
            second_key = tl.where(wins, loser_key, second_key)
            second_place = tl.where(wins, loser_place, second_place)
        scores = tl.reshape(tl.join(best, second), [2 * BLOCK])
        tokens = tl.reshape(tl.join(best_key, second_key), [2 * BLOCK])
        places = tl.reshape(tl.join(best_place, second_place), [2 * BLOCK])
        ids = tl.where(scores > float("-inf"), ids_of(tokens), 0x7FFFFFFF)
        _, one, one_place, _, two, two_place = best_two(scores, ids, places)
        at = cut_of(number, parts, found_bytes, HIGH, OTHER) + RACERS + 2 * tl.program_id(1)
        store_racer(ints, floats, at, one, one_place, sorted_keys)
        store_racer(ints, floats, at + 1, two, two_place, sorted_keys)


@triton.jit
def store_racer(ints, floats, at, name, place, sorted_keys):
    exists = (place >= 0) & (name != 0x7FFFFFFF)
    token = tl.load(sorted_keys + tl.maximum(place, 0))
    tl.store(ints + at, tl.where(exists, name, -1))
    tl.store(floats + at + MOST_RACERS, logits_of(token))
    tl.store(ints + at + 2 * MOST_RACERS, place)


@triton.jit(do_not_specialize=["first"])
def first_racer_kernel(
    lines, ints, floats, slots, first, parts, found_bytes, HIGH: tl.constexpr, OTHER: tl.constexpr
):
    """Stores the winner of the race of an edited row as that of the unedited one, because C needs its rank
    there."""
    number = line_of(slots, first)
    if number >= 0:
        line, cut = lines + number * LINE, cut_of(number, parts, found_bytes, HIGH, OTHER)
        of = tl.load(line + OF)
        if (of != number) & (tl.load(ints + cut + VALID) != 0):
            racer = tl.arange(0, MOST_RACERS)
            ids = tl.load(ints + cut + RACERS + racer)
            _, scale, _ = scales_of(line)
            score = tl.load(floats + cut + RACERS + MOST_RACERS + racer).to(tl.float64) * scale
            if tl.load(line + LUCKY) != 0:
                score += luck_of(uniform_bits(key_of(line), tl.maximum(ids, 0).to(tl.int64)))
            score = tl.where(ids >= 0, score, float("-inf"))
            winner = tl.min(tl.where(score == tl.max(score, 0), ids, 0x7FFFFFFF), 0)
            tl.store(ints + of * (found_bytes // 4) + WINNER, winner)


@triton.jit(do_not_specialize=["first"])
def list_sum_kernel(
    lines,
    ints,
    doubles,
    slots,
    masses,
    sorted_keys,
    bounds,
    first,
    stride,
    parts,
    found_bytes,
    SUMMED: tl.constexpr,
    HIGH: tl.constexpr,
    OTHER: tl.constexpr,
):
    """Adds up the weights of survivors that were listed, one after another in their order, as `sums_of` of
    ops/native/head.c.

    While the sum stays between two powers of two, each weight is rounded to a multiple of the sum's last
    bit, and what is added is exact. So some weights are added at once, unless one is just between two such
    multiples."""
    number = line_of(slots, first)
    if number >= 0:
        cut = cut_of(number, parts, found_bytes, HIGH, OTHER)
        if (tl.load(ints + cut + VALID) != 0) & (tl.load(ints + cut + LISTED) != 0):
            sorted_keys += tl.program_id(0).to(tl.int64) * stride
            masses += tl.program_id(0).to(tl.int64) * stride
            begin, end = tl.load(bounds + 2 * number), tl.load(bounds + 2 * number + 1)
            _, scale, _ = scales_of(lines + number * LINE)
            most = value_at(sorted_keys, begin, scale)
            total = tl.full([], 0.0, tl.float64)
            for start in range(begin, end, SUMMED):
                place = start + tl.arange(0, SUMMED)
                inside = place < end
                x = logits_of(tl.load(sorted_keys + place, mask=inside, other=0)).to(tl.float64) * scale
                weights = tl.where(inside, power_of_e(tl.where(inside, x - most, 0.0)), 0.0)
                exponent = (total.to(tl.int64, bitcast=True) >> 52) & 0x7FF
                # 2^52 / 2^exponent, by which the sum is a whole number from 2^52 to 2^53.
                factor = ((2046 + 52 - exponent) << 52).to(tl.float64, bitcast=True)
                multiples = weights * factor
                whole = tl.floor(multiples)
                rest = multiples - whole
                added = tl.sum(whole + tl.where(rest > 0.5, 1.0, 0.0), 0)
                between = tl.sum((rest == 0.5).to(tl.int32), 0) > 0
                after = total * factor + added
                if (start > begin) & (between == 0) & (after < 9007199254740992.0):
                    total = after / factor
                else:
                    tl.store(masses + place, weights, mask=inside)
                    tl.debug_barrier()
                    for some in range(start, tl.minimum(start + SUMMED, end), 16):
                        for step in tl.static_range(16):
                            total += tl.load(masses + some + step, mask=some + step < end, other=0.0)
                    tl.debug_barrier()
            tl.store(doubles + cut // 2 + LIST_SUM, total)


@triton.jit(do_not_specialize=["first"])
def array_sums_kernel(
    logits,
    edited,
    lines,
    ints,
    floats,
    doubles,
    slots,
    sorted_keys,
    bounds,
    first,
    stride,
    width,
    parts,
    found_bytes,
    PARTS: tl.constexpr,
    HIGH: tl.constexpr,
    OTHER: tl.constexpr,
):
    """Writes the sums over survivors that were not listed, part by part of the row."""
    number = line_of(slots, first)
    if number >= 0:
        cut = cut_of(number, parts, found_bytes, HIGH, OTHER)
        if (tl.load(ints + cut + VALID) != 0) & (tl.load(ints + cut + LISTED) == 0):
            line = lines + number * LINE
            sorted_keys += tl.program_id(0).to(tl.int64) * stride
            begin, end = tl.load(bounds + 2 * number), tl.load(bounds + 2 * number + 1)
            low, high = tl.load(sorted_keys + begin), tl.load(sorted_keys + end - 1)
            _, scale, _ = scales_of(line)
            row = row_of(logits, edited, line, number, stride)
            most = tl.load(floats + cut + HIGHEST).to(tl.float64)
            out = doubles + (cut + RACERS + 3 * MOST_RACERS) // 2
            store_sums_between(row, tl.program_id(1) * PARTS, most, scale, low, high, out, width, PARTS)
